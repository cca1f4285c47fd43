--[[
Take their slots from all holders, whoever they are, and give them to those in line; for operators.

keys: holders, facts, queue, waiters
args:
returns: FREED labels
events: publishes "token fence" on the channel of each that was given a slot
]]
local holders, facts, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
--- @include "slots"

local now = now_ms()
purge(now)
local labels = {}
for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  labels[#labels + 1] = string.match(redis.call('HGET', facts, 't:' .. token) or '', '^%d+ %d+ (.*)$') or ''
  redis.call('ZREM', holders, token)
  redis.call('HDEL', facts, 't:' .. token)
end
settle(now, tonumber(redis.call('HGET', facts, 'limit') or 1))
if redis.call('EXISTS', holders) == 0 then
  redis.call('PEXPIRE', facts, MEMORY_MS)
end
return { 'FREED', labels }
