--[[
An element is a run of its own from now on: its session's lease is not what keeps it any more.

keys: fan, busy
args: path, token, index
returns: DETACHED | LOST
]]
--- @include "fan"
local fan, busy = KEYS[1], KEYS[2]
local path, token, index = ARGV[1], ARGV[2], ARGV[3]

local held = redis.call('HGET', busy, fan_field(path, index))
if held == '@' then
  return { 'DETACHED' }
elseif held ~= token or redis.call('HEXISTS', fan, fan_field(path, 'lease:' .. token)) == 0 then
  return { 'LOST' }
end
redis.call('HSET', busy, fan_field(path, index), '@')
return { 'DETACHED' }
