--[[
Everything of a run as of one moment; with a token only if that token holds the run.

keys: run, steps, trace, requests
args: token
returns: OK now_ms scalars steps trace requests | LOST why | MISSING
]]
--- @include "clock"
local run, steps, trace, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]

local held = redis.call('HGET', run, 'token')
if not held then
  return { 'MISSING' }
elseif token ~= '' and held ~= token then
  return { 'LOST', 'token' }
end
return { 'OK', now_ms(), redis.call('HGETALL', run), redis.call('HGETALL', steps),
  redis.call('LRANGE', trace, 0, -1), redis.call('HGETALL', requests) }
