-- The last part of a decision to spend: needs rate, spent, now, time, keep_ms, longest (ms).
if redis.call('PTTL', rate) < longest then
  -- A little longer, lest the next one has to say so again.
  redis.call('PEXPIRE', rate, longest + 1000)
end
redis.call('PEXPIRE', spent, keep_ms)
-- Now and then is often enough.
if time[2] % 16 == 0 then
  redis.call('ZREMRANGEBYSCORE', spent, '-inf', now - keep_ms)
end
