-- The clock, and what was spent lately by its token: so a repeat spends nothing, and it can be given back. Who is refused
-- takes its token out again. Needs spent, token. In line, since every function costs each decision a closure.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('ZADD', spent, 'NX', now, token) == 0 then
  return { 'SPENT' }
end
