--[[
Hand out the next positions, in the order of `wanted`: triples of a token, its poison_ms and a label. The first one of an
empty line begins a new epoch.

Repeatable: a token that has a position keeps it.

keys: line, seats, state
args: wanted...
returns: ASSIGNED epoch positions
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
--- @include "order"

if redis.call('EXISTS', state) == 0 then
  local time = redis.call('TIME')
  redis.call('HSET', state, 'epoch', string.format('%.0f', time[1] * 1000000 + time[2]))
end
local now, positions = now_ms(), {}
for i = 1, #ARGV, 3 do
  local token, poison_ms, label = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local position = redis.call('HGET', seats, 't:' .. token)
  if not position then
    position = string.format('%.0f', redis.call('HINCRBY', state, 'next', 1))
    redis.call('ZADD', line, position, position)
    redis.call('HSET', seats, 't:' .. token, position)
    put_seat(position, { beat = now, poison = poison_ms, stage = 'queued', token = token, channel = '-',
      label = label })
  end
  positions[#positions + 1] = tonumber(position)
end
return { 'ASSIGNED', redis.call('HGET', state, 'epoch'), positions }
