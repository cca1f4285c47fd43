--[[
Spend `cost` in every window if all of them have room; a window is the time just past, and each spending is in its log.

`windows` are pairs of a limit and a length in ms, one for each of `logs`. If one has no room, nothing is spent: the
answer names the one that has room last, and in how many ms. `keep_ms` is for how long this can be given back.
Repeatable: `token` tells a repeat; the one who comes with the highest `fence` owns what was spent under it.

keys: rate, spent, logs...
args: token, fence, cost, keep_ms, windows...
returns: SPENT | REFUSED window retry_ms
]]
local rate, spent = KEYS[1], KEYS[2]
local token, fence, cost, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
--- @include "spent"

local now_us = time[1] * 1000000 + time[2]
local longest, worst, retry_ms = 0, 0, 0
for i = 3, #KEYS do
  local limit, length = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now_us - length * 1000)
  local over = redis.call('ZCARD', KEYS[i]) + cost - limit
  if over > 0 then
    -- There is room when this many of the oldest have slid out.
    local last = tonumber(redis.call('ZRANGE', KEYS[i], over - 1, over - 1, 'WITHSCORES')[2])
    local left = math.max(math.ceil((last - now_us) / 1000 + length), 1)
    if left > retry_ms then
      worst, retry_ms = i - 3, left
    end
  end
end
if retry_ms > 0 then
  redis.call('ZREM', spent, token)
  return { 'REFUSED', worst, retry_ms }
end
for i = 3, #KEYS do
  for unit = 1, cost do
    redis.call('ZADD', KEYS[i], now_us, token .. '#' .. unit)
  end
  redis.call('PEXPIRE', KEYS[i], ARGV[2 * i])
  redis.call('HSET', rate, 's' .. ARGV[2 * i], ARGV[2 * i - 1])
  longest = math.max(longest, tonumber(ARGV[2 * i]))
end
--- @include "remembered"
return { 'SPENT' }
