--[[
The markers of a period key as they are kept: pairs of a field and "start marked_ms label".

keys: period
args:
returns: REPORT now_ms rows
]]
--- @include "clock"
local period = KEYS[1]

return { 'REPORT', now_ms(), redis.call('HGETALL', period) }
