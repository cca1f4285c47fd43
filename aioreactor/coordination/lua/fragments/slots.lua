--- @include "clock"
--- @include "keep"
-- The slots of one key. Needs holders (token by the end of its lease), facts (`fence` and `limit`, and of each holder
-- "fence since_ms label"), queue (tokens in order of arrival), waiters (of each "alive_ms grace_ms channel label").

-- Drops the holders whose lease is past.
local function purge(now)
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', now)) do
    redis.call('ZREM', holders, token)
    redis.call('HDEL', facts, 't:' .. token)
  end
end

-- Gives a slot. Its fence is above the one before; it follows the clock, lest it fall when the key is forgotten.
local function grant(now, token, ttl_ms, label, limit)
  local fence = math.max(tonumber(redis.call('HGET', facts, 'fence') or 0) + 1, now * 1000)
  redis.call('ZADD', holders, now + ttl_ms, token)
  redis.call('HSET', facts, 'fence', fence, 'limit', limit,
    't:' .. token, string.format('%.0f %.0f %s', fence, now, label))
  keep(holders, ttl_ms + MEMORY_MS)
  keep(facts, ttl_ms + MEMORY_MS)
  return fence
end

-- Gives free slots to those first in line who are alive, each for its grace, and tells them.
local function settle(now, limit)
  local free = limit - redis.call('ZCARD', holders)
  while free > 0 do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then
      return
    end
    local alive, grace, channel, label =
      string.match(redis.call('HGET', waiters, first) or '', '^(%d+) (%d+) (%S+) (.*)$')
    redis.call('ZREM', queue, first)
    redis.call('HDEL', waiters, first)
    if alive and tonumber(alive) > now then
      local fence = grant(now, first, tonumber(grace), label, limit)
      redis.call('PUBLISH', channel, string.format('%s %.0f', first, fence))
      free = free - 1
    end
  end
end

-- Milliseconds until the first lease ends.
local function ms_left(now)
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(tonumber(first[2]) - now, 1) or 1
end
