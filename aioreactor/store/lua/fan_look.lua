--[[
Where a fan-out stands. Elements of sessions whose lease is past are to be dealt again; `waiting` is how many are, and
how many new ones could be; `runs` are the elements that are runs of their own.

keys: fan, busy
args: path, names...
returns: OK now_ms values waiting sessions runs | GONE
]]
--- @include "clock"
--- @include "fan"
local fan, busy = KEYS[1], KEYS[2]
local path = ARGV[1]

if redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'GONE' }
end
fan_reclaim(fan, busy, path, '', now_ms())
local values = {}
for i = 2, #ARGV do
  values[i - 1] = fan_text(fan, path, ARGV[i])
end
local waiting, sessions = 0, 0
for _ in string.gmatch(fan_text(fan, path, 'again'), '%S+') do
  waiting = waiting + 1
end
for _ in string.gmatch(fan_text(fan, path, 'tokens'), '%S+') do
  sessions = sessions + 1
end
if fan_text(fan, path, 'doomed') == '' then
  local given = fan_number(fan, path, 'given')
  local room = fan_number(fan, path, 'window') - (given - fan_number(fan, path, 'settled'))
  waiting = waiting + math.max(math.min(room, fan_number(fan, path, 'fed') - given), 0)
end
local runs, all, prefix = {}, redis.call('HGETALL', busy), path .. '\n'
for i = 1, #all, 2 do
  if all[i + 1] == '@' and string.sub(all[i], 1, #prefix) == prefix then
    runs[#runs + 1] = string.sub(all[i], #prefix + 1)
  end
end
return { 'OK', now_ms(), values, waiting, sessions, runs }
