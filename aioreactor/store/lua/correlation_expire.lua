--[[
The holder of a correlation id was answered: it is known for a while longer, then gone; not if it is another's by now.

keys: correlation, watched
args: holder, keep_ms
returns: OK
]]
local correlation, watched = KEYS[1], KEYS[2]
local holder, keep_ms = ARGV[1], tonumber(ARGV[2])

if redis.call('GET', correlation) == holder then
  redis.call('PEXPIRE', correlation, keep_ms)
  redis.call('ZREM', watched, correlation)
end
return { 'OK' }
