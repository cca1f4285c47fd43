--[[
Keep a run that is held with this token; also one whose lease is past, if nobody else took it.

keys: run, requests
args: token, ttl_ms
returns: OK lease_ms asked | LOST why
]]
--- @include "clock"
local run, requests = KEYS[1], KEYS[2]
local token, ttl_ms = ARGV[1], tonumber(ARGV[2])

local held = redis.call('HGET', run, 'token')
if held ~= token then
  return { 'LOST', held and 'token' or 'gone' }
end
local lease_ms = now_ms() + ttl_ms
redis.call('HSET', run, 'lease_ms', lease_ms)
return { 'OK', lease_ms, redis.call('HLEN', requests) }
