--[[
What there is of a queue: jobs whose time has come, jobs of a later time, and workers with "seen_ms until_ms running
places" each.

keys: queue, workers
args:
returns: REPORT now_ms due later workers
]]
--- @include "clock"
local queue, workers = KEYS[1], KEYS[2]

local now = now_ms()
local due = redis.call('ZCOUNT', queue, '-inf', now)
return { 'REPORT', now, due, redis.call('ZCARD', queue) - due, redis.call('HGETALL', workers) }
