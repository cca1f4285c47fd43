--[[
Note who waits for a correlation id, unless somebody else does; `stale` is a holder that was found to wait no more.

It stays until its interrupt is open no more. Should nobody be there to say so, a sweeper finds it in `watched`.

keys: correlation, watched
args: holder, stale, look_ms
returns: OK | TAKEN holder
]]
--- @include "clock"
local correlation, watched = KEYS[1], KEYS[2]
local holder, stale, look_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local known = redis.call('GET', correlation)
if known and known ~= holder and known ~= stale then
  return { 'TAKEN', known }
end
redis.call('SET', correlation, holder)
redis.call('ZADD', watched, now_ms() + look_ms, correlation)
return { 'OK' }
