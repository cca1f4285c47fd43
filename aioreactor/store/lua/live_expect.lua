--[[
Have the sweeper look at runs after a while. `gently`: only at those that it would not look at anyway.

keys: live
args: gently, pairs...
returns: OK
]]
--- @include "clock"
local live = KEYS[1]
local gently = ARGV[1]

local now = now_ms()
for place = 2, #ARGV, 2 do
  redis.call('ZADD', live, gently == '1' and 'NX' or 'XX', now + ARGV[place + 1], ARGV[place])
end
return { 'OK' }
