-- The clock, and what was spent lately by its token: so a repeat spends nothing, and it can be given back. Who is refused
-- takes its token out again. Needs spent, token, fence. In line, since every function costs each decision a closure.
--
-- The score is when it was spent, in ms. Its fraction, in units of 1/1024 (a double of that size has four times that), is
-- the fence of its owner: one who is late cannot give back what somebody else goes on with.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local mine = fence % 1024 / 1024
if redis.call('ZADD', spent, 'NX', now + mine, token) == 0 then
  local at = tonumber(redis.call('ZSCORE', spent, token))
  -- Fences go round: half of them are ahead of one.
  if (mine - at) % 1 < 0.5 then
    redis.call('ZADD', spent, math.floor(at) + mine, token)
  end
  return { 'SPENT' }
end
