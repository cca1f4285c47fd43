--[[
What a run waits for is there before it is due: from now on somebody is expected to take it.

Nothing changes if it is held, has ended, or is due already. Repeatable: the second time finds it due.

keys: run
args:
returns: ROUSED | LEFT
]]
--- @include "clock"
--- @include "statuses"
local run = KEYS[1]

local row = redis.call('HMGET', run, 'status', 'token', 'due_ms')
if not row[1] or TERMINAL[row[1]] or row[2] ~= '' or tonumber(row[3] or 0) <= now_ms() then
  return { 'LEFT' }
end
redis.call('HSET', run, 'due_ms', now_ms())
return { 'ROUSED' }
