--- @include "clock"
--- @include "keep"
-- What was spent lately is remembered by its token: so a repeat spends nothing, and it can be given back.
-- Needs spent, token, keep_ms.
local function was_spent()
  return redis.call('ZSCORE', spent, token) ~= false
end

local function remember(now)
  redis.call('ZREMRANGEBYSCORE', spent, '-inf', now - keep_ms)
  redis.call('ZADD', spent, now, token)
  keep(spent, keep_ms)
end
