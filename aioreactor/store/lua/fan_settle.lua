--[[
Elements have ended: counts each once, keeps what it came to, and deals others in their place; `more` is for others.

`settled` are triples of index, kind and record: kinds are s (success), k (skipped), f (failure), h (halt), in capitals
when there is something to roll back. An empty record is a success with None. `token` is "@" for an element that was a
run of its own. When the last one has ended, or it is doomed and none is under way, the run is woken. Repeatable: an
element that has settled is not the session's any more, and is counted no more.

keys: run, fan, out, busy
args: path, token, ttl_ms, wanted, channel, n, settled...
returns: OK refused over indexes more doomed wake items counted | GONE
events: publishes the path on `channel`
]]
--- @include "clock"
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
--- @include "fan_deal"
--- @include "fan_count"
local run, fan, out, busy = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local path, token, ttl_ms, wanted, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local n = tonumber(ARGV[6])

if redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'GONE' }
end
local size, keep = fan_number(fan, path, 'chunk'), fan_number(fan, path, 'keep')
local refused, counts, again = {}, { settled = 0 }, ' ' .. fan_text(fan, path, 'again')
for i = 7, 6 + 3 * n, 3 do
  local index, kind, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local held = redis.call('HGET', busy, fan_field(path, index))
  if held ~= token then
    -- One that nobody has, and nobody is to have, was counted when this was sent before.
    if held or string.find(again, ' ' .. index .. ' ', 1, true) then
      refused[#refused + 1] = index
    end
  else
    redis.call('HDEL', busy, fan_field(path, index))
    fan_note(fan, out, path, index, kind, record, counts)
    if keep == 0 then
      fan_forget_item(fan, path, size, index)
    end
  end
end
fan_add(fan, path, counts)
if token ~= '@' then
  fan_lease(fan, path, token, now_ms() + ttl_ms)
end
fan_expire(run, fan, out, busy)
local dealt, more, doomed, is_low = fan_deal(fan, busy, path, token, wanted)
local over = fan_is_over(fan, path, fan_number(fan, path, 'given'), fan_number(fan, path, 'settled'))
local turned = over and redis.call('HSETNX', fan, fan_field(path, 'over'), '1') == 1
if turned then
  redis.call('HSET', fan, fan_field(path, 'over_ms'), now_ms())
  if keep == 0 then
    fan_forget_chunk(fan, path, math.floor(fan_number(fan, path, 'fed') / size)) -- the last one is seldom full
  end
end
local wake = (turned or is_low) and fan_wake(run, channel, path) or nil
local items = fan_items(fan, path, size, dealt)
return { 'OK', refused, over and 1 or 0, dealt, more, doomed and 1 or 0, wake or '-', items, counts.settled }
