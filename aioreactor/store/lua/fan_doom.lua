--[[
Nothing of a fan-out starts any more. With `cut` (how: stop, rollback), sessions are told to cancel what is under way.

Answers what is under way still: how many elements, and which of them are runs of their own. Repeatable.

keys: fan, busy
args: path, why, cut, channel
returns: DOOMED under_way runs | GONE
events: publishes "cut" and the path on `channel`
]]
--- @include "clock"
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
local fan, busy = KEYS[1], KEYS[2]
local path, why, cut, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'GONE' }
end
redis.call('HSETNX', fan, fan_field(path, 'doomed'), why)
redis.call('HSETNX', fan, fan_field(path, 'doomed_ms'), now_ms())
local given, settled = fan_number(fan, path, 'given'), fan_number(fan, path, 'settled')
if fan_is_over(fan, path, given, settled) then
  redis.call('HSETNX', fan, fan_field(path, 'over'), '1')
end
local runs, all, prefix = {}, redis.call('HGETALL', busy), path .. '\n'
for i = 1, #all, 2 do
  if all[i + 1] == '@' and string.sub(all[i], 1, #prefix) == prefix then
    runs[#runs + 1] = string.sub(all[i], #prefix + 1)
  end
end
if cut ~= '' and redis.call('HSETNX', fan, fan_field(path, 'cut'), cut) == 1 then
  redis.call('PUBLISH', channel, 'cut\n' .. path)
end
return { 'DOOMED', given - settled, runs }
