--[[
An element that was to be a run of its own is none: it is dealt again. Repeatable.

keys: fan, busy
args: path, index
returns: AGAIN | LEFT
]]
--- @include "fan"
local fan, busy = KEYS[1], KEYS[2]
local path, index = ARGV[1], ARGV[2]

if redis.call('HGET', busy, fan_field(path, index)) ~= '@' then
  return { 'LEFT' }
end
redis.call('HDEL', busy, fan_field(path, index))
fan_give_again(fan, path, { index })
return { 'AGAIN' }
