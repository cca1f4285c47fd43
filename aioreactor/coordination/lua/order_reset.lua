--[[
Forget all positions and the epoch: whoever has one is out; for operators.

keys: line, seats, state
args:
returns: RESET dropped
events: publishes "token 0" on the channels of all that had a position
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
--- @include "order"

local positions = redis.call('ZRANGE', line, 0, -1)
for _, position in ipairs(positions) do
  tell(seat_of(position))
end
redis.call('DEL', line, seats, state)
return { 'RESET', #positions }
