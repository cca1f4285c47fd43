--[[
The windows of a rate key as they are kept: pairs of "f60000" (algorithm, length in ms) and the row.

keys: rate
args:
returns: REPORT now_ms rows
]]
--- @include "clock"
local rate = KEYS[1]

return { 'REPORT', now_ms(), redis.call('HGETALL', rate) }
