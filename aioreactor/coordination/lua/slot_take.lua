--[[
Take one of `limit` slots; if none is free and `alive_ms` is above 0, stand in line for so long from now.

Who stands in line and asks again keeps its place. Nobody overtakes those who are in line and alive. `limit` counts
from now on for all. One that is given a slot while it waits has it for `grace_ms`, until it asks or renews. `heard` 1:
if nobody listens on its channel by then, it is passed by.
Repeatable: a token is new for each hold, so one that has a slot took it before.

keys: holders, facts, queue, waiters
args: token, limit, ttl_ms, alive_ms, grace_ms, heard, channel, label
returns: TAKEN fence | WAITS ms_left ahead last_fence | REFUSED ms_left
events: publishes "token fence" on the channel of each that was given a slot
]]
local holders, facts, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, limit, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local alive_ms, grace_ms, heard = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local channel, label = ARGV[7], ARGV[8]

-- Nobody holds and nobody waits, as mostly: so much without the functions below, which cost more than the rest.
if redis.call('EXISTS', holders, queue) == 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local fence = math.max(tonumber(redis.call('HGET', facts, 'fence') or 0) + 1, time[1] * 1000000 + time[2])
  redis.call('ZADD', holders, now + ttl_ms, token)
  redis.call('HSET', facts, 'fence', fence, 'limit', limit,
    't:' .. token, string.format('%.0f %.0f %s', fence, now, label))
  redis.call('PEXPIRE', holders, ttl_ms + 60000)
  redis.call('PEXPIRE', facts, ttl_ms + 60000)
  return { 'TAKEN', fence }
end
--- @include "slots"

local function fence_of()
  if not redis.call('ZSCORE', holders, token) then
    return nil
  end
  redis.call('ZADD', holders, 'XX', now + ttl_ms, token)
  keep(holders, ttl_ms + MEMORY_MS)
  keep(facts, ttl_ms + MEMORY_MS)
  return tonumber(string.match(redis.call('HGET', facts, 't:' .. token) or '', '^%d+') or 0)
end

purge()
local fence = fence_of()
local empty = redis.call('EXISTS', queue) == 0
if not fence and empty and redis.call('ZCARD', holders) < limit then
  fence = grant(token, ttl_ms, label, limit)
elseif not fence then
  redis.call('HSET', facts, 'limit', limit)
  keep(facts, MEMORY_MS)
  if alive_ms > 0 then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', queue, 'NX', math.max(tonumber(last or 0) + 1, now * 1000), token)
    redis.call('HSET', waiters, token,
      string.format('%.0f %.0f %s %s %s', now + alive_ms, grace_ms, heard, channel, label))
    keep(queue, alive_ms + MEMORY_MS)
    keep(waiters, alive_ms + MEMORY_MS)
  end
  settle(limit, token)
  fence = fence_of()
  if not fence and alive_ms == 0 and redis.call('ZCARD', holders) < limit then
    fence = grant(token, ttl_ms, label, limit)
  end
end
if fence then
  return { 'TAKEN', fence }
elseif alive_ms == 0 then
  return { 'REFUSED', ms_left() }
end
return { 'WAITS', ms_left(), redis.call('ZRANK', queue, token), tonumber(redis.call('HGET', facts, 'fence') or 0) }
