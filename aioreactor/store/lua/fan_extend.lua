--[[
Keep a session's lease.

keys: fan
args: path, token, ttl_ms
returns: OK cut | LOST
]]
--- @include "clock"
--- @include "fan"
local fan = KEYS[1]
local path, token, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('HEXISTS', fan, fan_field(path, 'lease:' .. token)) == 0 then
  return { 'LOST' }
end
redis.call('HSET', fan, fan_field(path, 'lease:' .. token), now_ms() + ttl_ms)
return { 'OK', fan_text(fan, path, 'cut') }
