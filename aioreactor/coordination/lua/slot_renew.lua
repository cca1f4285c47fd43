--[[
Make a lease last `ttl_ms` from now; with 0, only look. One that is past is lost, whether or not somebody has it since.

keys: holders, facts
args: token, ttl_ms
returns: HELD ms_left | LOST why
]]
--- @include "clock"
--- @include "keep"
local holders, facts = KEYS[1], KEYS[2]
local token, ttl_ms = ARGV[1], tonumber(ARGV[2])

local now = now_ms()
local ends = tonumber(redis.call('ZSCORE', holders, token) or 0)
if ends == 0 then
  return { 'LOST', 'gone' }
elseif ends <= now then
  return { 'LOST', 'expired' }
elseif ttl_ms == 0 then
  return { 'HELD', ends - now }
end
redis.call('ZADD', holders, 'XX', now + ttl_ms, token)
keep(holders, ttl_ms + MEMORY_MS)
keep(facts, ttl_ms + MEMORY_MS)
return { 'HELD', ttl_ms }
