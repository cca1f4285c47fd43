--[[
Elements have been rolled back: counts each once, keeps what is left of it and what went wrong.

`settled` are triples of index, record (with its kind, in capitals while something is owed) and report, empty when all
went well. An empty record leaves the old one. `more` is for others. The run is woken after the last one. Repeatable, as
`fan_settle`.

keys: run, fan, out, busy
args: path, token, ttl_ms, channel, settled...
returns: OK refused over more wake | GONE
events: publishes the path on `channel`
]]
--- @include "clock"
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
--- @include "fan_deal_back"
local run, fan, out, busy = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local path, token, ttl_ms, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

if fan_text(fan, path, 'back') == '' then
  return { 'GONE' }
end
local refused, came, undone, bad = {}, 0, 0, {}
local again = ' ' .. fan_text(fan, path, 'again')
for i = 5, #ARGV, 3 do
  local index, record, report = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local held = redis.call('HGET', busy, fan_field(path, index))
  if held ~= token then
    if held or string.find(again, ' ' .. index .. ' ', 1, true) then
      refused[#refused + 1] = index
    end
  else
    redis.call('HDEL', busy, fan_field(path, index))
    came = came + 1
    if record ~= '' then
      redis.call('HSET', out, fan_field(path, index), record)
    end
    if report == '' then
      undone = undone + 1
    else
      redis.call('HSET', out, fan_field(path, 'r:' .. index), report)
      bad[#bad + 1] = index
    end
  end
end
redis.call('HINCRBY', fan, fan_field(path, 'came_back'), came)
redis.call('HINCRBY', fan, fan_field(path, 'undone'), undone)
if #bad > 0 then
  redis.call('HSET', fan, fan_field(path, 'bad'), fan_text(fan, path, 'bad') .. table.concat(bad, ' ') .. ' ')
end
if token ~= '@' then
  fan_lease(fan, path, token, now_ms() + ttl_ms)
end
fan_expire(run, fan, out, busy)
local over, wake = fan_is_back(fan, path), nil
if over and fan_text(fan, path, 'back_over') == '' then
  redis.call('HSET', fan, fan_field(path, 'back_over'), '1')
  wake = fan_wake(run, channel, path)
end
return { 'OK', refused, over and 1 or 0, fan_more_back(fan, path), wake or '-' }
