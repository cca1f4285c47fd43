--[[
Hand out the next position. The first one of an empty line begins a new epoch.

Repeatable: a token that has a position keeps it.

keys: line, seats, state
args: token, poison_ms, channel, label
returns: ASSIGNED epoch position
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
local token, poison_ms, channel, label = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
--- @include "order"

local position = redis.call('HGET', seats, 't:' .. token)
if not position then
  if redis.call('EXISTS', state) == 0 then
    local time = redis.call('TIME')
    redis.call('HSET', state, 'epoch', string.format('%.0f', time[1] * 1000000 + time[2]))
  end
  position = string.format('%.0f', redis.call('HINCRBY', state, 'next', 1))
  redis.call('ZADD', line, position, position)
  redis.call('HSET', seats, 't:' .. token, position)
  put_seat(position, { beat = now_ms(), poison = poison_ms, stage = 'queued', token = token, channel = channel,
    label = label })
end
return { 'ASSIGNED', redis.call('HGET', state, 'epoch'), tonumber(position) }
