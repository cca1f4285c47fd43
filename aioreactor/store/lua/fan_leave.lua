--[[
A session ends: what it has, it gives back, for others to execute. `more` is how much there is for them; nothing, when
its fan-out is gone. Repeatable.

keys: fan, busy
args: path, token
returns: LEFT more
]]
--- @include "fan"
--- @include "fan_deal"
--- @include "fan_deal_back"
local fan, busy = KEYS[1], KEYS[2]
local path, token = ARGV[1], ARGV[2]

if redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'LEFT', 0 }
end
fan_reclaim(fan, busy, path, token, 0)
if fan_text(fan, path, 'back') ~= '' then
  return { 'LEFT', fan_more_back(fan, path) }
end
local _, more = fan_deal(fan, busy, path, token, 0)
return { 'LEFT', more }
