--[[
Pass over the first position, whatever it is doing, and tell the next; for operators.

keys: line, seats, state
args:
returns: SKIPPED position label | EMPTY
events: publishes "token 0" on the channel of the one that was skipped and of the next
]]
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]
--- @include "order"

local now = now_ms()
local head, seat = head_of_line(now)
if not head then
  return { 'EMPTY' }
end
vacate(head)
tell(seat)
tell_first(now)
return { 'SKIPPED', tonumber(head), seat.label }
