--[[
A position is done: the line advances, and the next one is told. `failed` 1 notes it as failed, the first one counts.

Repeatable: the second time the position is gone.

keys: line, seats, state
args: epoch, position, token, failed
returns: FINISHED left | GONE
events: publishes "token 0" on the channel of the next in line
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
local epoch, position, token, failed = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--- @include "order"

if redis.call('HGET', state, 'epoch') ~= epoch or seat_of(position).token ~= token then
  return { 'GONE' }
end
if failed == '1' then
  redis.call('HSETNX', state, 'failed', position)
end
vacate(position)
tell_first(now_ms())
return { 'FINISHED', redis.call('ZCARD', line) }
