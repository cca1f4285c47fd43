--[[
Whether it is the turn of a position; asking is a sign of life. Those before it that gave none are passed over.

Of another epoch: STALE. Done, passed over or skipped: PASSED. With `strict` 1, one after a failure: FAILED, which one.
`channel` is where its turn is told, "-" for nowhere.

keys: line, seats, state
args: epoch, position, token, strict, channel
returns: TURN | WAITS ahead ms_left | STALE | PASSED | FAILED first
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
local epoch, position, token, strict, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
--- @include "order"

if redis.call('HGET', state, 'epoch') ~= epoch then
  return { 'STALE' }
end
local seat, now = seat_of(position), now_ms()
if seat.token ~= token then
  return { 'PASSED' }
end
seat.beat, seat.channel = now, channel
put_seat(position, seat)
local head, first = head_of_line(now)
local failed = tonumber(redis.call('HGET', state, 'failed') or 0)
if strict == '1' and failed > 0 and failed < tonumber(position) then
  return { 'FAILED', failed }
elseif head == position then
  seat.stage = 'running'
  put_seat(position, seat)
  return { 'TURN' }
end
return { 'WAITS', redis.call('ZRANK', line, position), math.max(first.beat + first.poison - now, 1) }
