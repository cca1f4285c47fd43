--[[
More items of a fan-out, in chunks; `fed` is how many there were before, so that no item comes twice.

`ended` is 1 when these are the last; then `over` may be what follows at once, of a source that is empty. Repeatable: a
repeat finds that there are more than `fed`.

keys: fan
args: path, fed, more, ended, cursor, chunks...
returns: FED fed over | STALE fed cursor ended
]]
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
local fan = KEYS[1]
local path, fed, more, ended, cursor = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]

local now_fed = fan_number(fan, path, 'fed')
if now_fed ~= fed then
  return { 'STALE', now_fed, fan_text(fan, path, 'cursor'), fan_number(fan, path, 'end') }
end
for i = 6, #ARGV, 2 do
  redis.call('HSET', fan, fan_field(path, 'i:' .. ARGV[i]), ARGV[i + 1])
end
redis.call('HSET', fan, fan_field(path, 'fed'), fed + more, fan_field(path, 'cursor'), cursor, fan_field(path, 'low'), '')
if ended == '1' then
  redis.call('HSET', fan, fan_field(path, 'end'), '1', fan_field(path, 'total'), fed + more)
end
local given, settled = fan_number(fan, path, 'given'), fan_number(fan, path, 'settled')
local over = fan_is_over(fan, path, given, settled)
if over then
  redis.call('HSET', fan, fan_field(path, 'over'), '1')
end
return { 'FED', fed + more, over and 1 or 0 }
