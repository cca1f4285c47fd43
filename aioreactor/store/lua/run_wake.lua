--[[
Have a run that was let go until a unit ends be due at once, since one has.

Who holds it hears of units by itself; but it may be about to let the run go, so `woken` makes it due when it does.
`rest` says what a run waits for. Repeatable: it stays due.

keys: run
args:
returns: DUE queue | HELD | OTHER | OVER
]]
--- @include "statuses"
local run = KEYS[1]

local row = redis.call('HMGET', run, 'status', 'token', 'rest', 'queue')
if not row[1] or TERMINAL[row[1]] then
  return { 'OVER' }
elseif row[2] ~= '' then
  redis.call('HSET', run, 'woken', 1)
  return { 'HELD' }
elseif not string.find(row[3] or '', '^%d+ unit ') then
  return { 'OTHER' }
end
redis.call('HSET', run, 'due_ms', 0)
return { 'DUE', row[4] or '' }
