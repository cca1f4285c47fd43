--[[
Begin a fan-out of a run, unless it was begun before; its items come by `fan_feed`.

`shared` is what all elements have in common. `atomic` and `keep` are 0 or 1: whether the first failure ends it, whether
items are needed after their element has settled. Repeatable: the second time finds it.

keys: fan
args: path, atomic, window, chunk, keep, shared
returns: OPENED | EXISTS fed cursor ended
]]
--- @include "clock"
--- @include "fan"
local fan = KEYS[1]
local path, atomic, window, chunk, keep, shared = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

if redis.call('HSETNX', fan, fan_field(path, 'window'), window) == 0 then
  return { 'EXISTS', fan_number(fan, path, 'fed'), fan_text(fan, path, 'cursor'), fan_number(fan, path, 'end') }
end
local first = { atomic = atomic, chunk = chunk, keep = keep, shared = shared, began_ms = now_ms(), fed = 0, given = 0,
  settled = 0, ok = 0, failed = 0, skipped = 0 }
for name, value in pairs(first) do
  redis.call('HSET', fan, fan_field(path, name), value)
end
return { 'OPENED' }
