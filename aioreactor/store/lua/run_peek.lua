--[[
Some scalars of a run, empty where one is not set.

keys: run
args: fields...
returns: OK now_ms values | MISSING
]]
--- @include "clock"
local run = KEYS[1]

local values = redis.call('HMGET', run, 'ver', unpack(ARGV))
if not table.remove(values, 1) then
  return { 'MISSING' }
end
for place, value in ipairs(values) do
  values[place] = value or ''
end
return { 'OK', now_ms(), values }
