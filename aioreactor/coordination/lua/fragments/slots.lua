--- @include "keep"
-- The slots of one key. Needs holders (token by the end of its lease), facts (`fence` and `limit`, and of each holder
-- "fence since_ms label"), queue (tokens in order of arrival), waiters (of each "alive_ms grace_ms heard channel label").

local time = redis.call('TIME')
local now, now_us = time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]

-- Drops the holders whose lease is past.
local function purge()
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', now)) do
    redis.call('ZREM', holders, token)
    redis.call('HDEL', facts, 't:' .. token)
  end
end

-- Gives a slot. Its fence is above the one before; it follows the clock, lest it fall when the key is forgotten.
local function grant(token, ttl_ms, label, limit)
  local fence = math.max(tonumber(redis.call('HGET', facts, 'fence') or 0) + 1, now_us)
  redis.call('ZADD', holders, now + ttl_ms, token)
  redis.call('HSET', facts, 'fence', fence, 'limit', limit,
    't:' .. token, string.format('%.0f %.0f %s', fence, now, label))
  keep(holders, ttl_ms + MEMORY_MS)
  keep(facts, ttl_ms + MEMORY_MS)
  return fence
end

-- Gives free slots to those first in line who are alive, each for its grace, and tells them, but for the one who asks.
-- With `heard` 1, one that nobody listens for is gone, or will ask when it is back: it is passed by, and keeps its place.
local function settle(limit, asker)
  local free, place = limit - redis.call('ZCARD', holders), 0
  while free > 0 do
    local token = redis.call('ZRANGE', queue, place, place)[1]
    if not token then
      return
    end
    local alive, grace, heard, channel, label =
      string.match(redis.call('HGET', waiters, token) or '', '^(%d+) (%d+) (%d) (%S+) (.*)$')
    local given, fence = alive and tonumber(alive) > now, 0
    if given then
      fence = grant(token, tonumber(grace), label, limit)
    end
    if given and token ~= asker and redis.call('PUBLISH', channel, string.format('%s %.0f', token, fence)) == 0
      and heard == '1' then
      redis.call('ZREM', holders, token)
      redis.call('HDEL', facts, 't:' .. token)
      place = place + 1
    else
      redis.call('ZREM', queue, token)
      redis.call('HDEL', waiters, token)
      free = given and free - 1 or free
    end
  end
end

-- Milliseconds until the first lease ends.
local function ms_left()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
  return first[2] and math.max(tonumber(first[2]) - now, 1) or 1
end
