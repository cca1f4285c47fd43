-- Milliseconds for which a key outlives what it is needed for: it remembers numbers that have to grow.
local MEMORY_MS = 60000

-- Has a key live for at least so long from now.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end
