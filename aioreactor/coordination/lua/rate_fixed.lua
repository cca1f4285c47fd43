--[[
Spend `cost` in every window if all of them have room; windows begin at multiples of their length.

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

local longest, worst, retry_ms = 0, 0, 0
local fields, changes = {}, {}
for i = 6, #ARGV, 2 do
  fields[#fields + 1] = 'f' .. ARGV[i]
end
local rows = redis.call('HMGET', rate, unpack(fields))
for i = 5, #ARGV, 2 do
  local limit, length = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local index, count = math.floor(now / length), 0
  local before, spent_before = string.match(rows[#changes / 2 + 1] or '', '^(%d+) (%d+)')
  -- A window that lies ahead is one that was counted before the clock was set back.
  if before and tonumber(before) >= index then
    index, count = tonumber(before), tonumber(spent_before)
  end
  if count + cost > limit then
    local left = (index + 1) * length - now
    if left > retry_ms then
      worst, retry_ms = (i - 5) / 2, left
    end
  end
  longest = math.max(longest, (index + 1) * length - now)
  changes[#changes + 1] = fields[#changes / 2 + 1]
  changes[#changes + 1] = string.format('%.0f %.0f %.0f', index, count + cost, limit)
end
if retry_ms > 0 then
  redis.call('ZREM', spent, token)
  return { 'REFUSED', worst, retry_ms }
end
redis.call('HSET', rate, unpack(changes))
--- @include "remembered"
return { 'SPENT' }
