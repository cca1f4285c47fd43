--[[
Note who waits for a correlation id, unless somebody else does; `stale` is a holder that was found to wait no more.

keys: correlation
args: holder, stale
returns: OK | TAKEN holder
]]
local correlation = KEYS[1]
local holder, stale = ARGV[1], ARGV[2]

local known = redis.call('GET', correlation)
if known and known ~= holder and known ~= stale then
  return { 'TAKEN', known }
end
redis.call('SET', correlation, holder)
return { 'OK' }
