--[[
Spend `cost` in every window if all of them have room, by the generic cell rate algorithm: room comes back evenly.

`windows` are pairs of a limit and a length in ms. If one has no room, nothing is spent: the answer names the one that
has room last, and in how many ms. `keep_ms` is for how long this can be given back.
Repeatable: `token` tells a repeat; the one who comes with the highest `fence` owns what was spent under it.

keys: rate, spent
args: token, fence, cost, keep_ms, windows...
returns: SPENT | REFUSED window retry_ms
]]
local rate, spent = KEYS[1], KEYS[2]
local token, fence, cost, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
--- @include "spent"

local now_us = time[1] * 1000000 + time[2]
local longest, worst, retry_ms = 0, 0, 0
local fields, changes = {}, {}
for i = 6, #ARGV, 2 do
  fields[#fields + 1] = 'g' .. ARGV[i]
end
local rows = redis.call('HMGET', rate, unpack(fields))
for i = 5, #ARGV, 2 do
  local limit, length = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  -- Microseconds, rounded down, so that `limit` of them fit into a window.
  local interval = math.floor(length * 1000 / limit)
  local before = tonumber(string.match(rows[#changes / 2 + 1] or '', '^%d+') or 0)
  local arrival = math.max(before, now_us) + cost * interval
  local over_ms = math.ceil((arrival - now_us) / 1000 - length)
  if over_ms > retry_ms then
    worst, retry_ms = (i - 5) / 2, over_ms
  end
  longest = math.max(longest, math.ceil((arrival - now_us) / 1000))
  changes[#changes + 1] = fields[#changes / 2 + 1]
  changes[#changes + 1] = string.format('%.0f %.0f', arrival, limit)
end
if retry_ms > 0 then
  redis.call('ZREM', spent, token)
  return { 'REFUSED', worst, retry_ms }
end
redis.call('HSET', rate, unpack(changes))
--- @include "remembered"
return { 'SPENT' }
