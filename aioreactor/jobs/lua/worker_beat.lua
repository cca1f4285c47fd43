--[[
A worker is there, for `alive_ms` from now, with so many runs in so many places. Those not seen for `keep_ms` are forgotten.

Repeatable: it is there once.

keys: workers
args: worker, alive_ms, keep_ms, running, places
returns: OK
]]
--- @include "clock"
local workers = KEYS[1]
local worker, alive_ms, keep_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local running, places = ARGV[4], ARGV[5]

local now = now_ms()
redis.call('HSET', workers, worker, string.format('%.0f %.0f %s %s', now, now + alive_ms, running, places))
redis.call('PEXPIRE', workers, keep_ms)
local all = redis.call('HGETALL', workers)
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+')) + keep_ms < now then
    redis.call('HDEL', workers, all[i])
  end
end
return { 'OK' }
