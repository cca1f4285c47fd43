--[[
A sign of life of a position; with a `stage` (queued, running) it changes to that.

keys: line, seats, state
args: epoch, position, token, stage
returns: ALIVE | LOST why
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
local epoch, position, token, stage = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
--- @include "order"

local seat = seat_of(position)
if redis.call('HGET', state, 'epoch') ~= epoch then
  return { 'LOST', 'stale' }
elseif seat.token ~= token then
  return { 'LOST', 'passed' }
end
seat.beat, seat.stage = now_ms(), stage ~= '' and stage or seat.stage
put_seat(position, seat)
return { 'ALIVE' }
