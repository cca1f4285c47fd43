--[[
Remove all keys of a run at once; one with a live lease only if `forced` is 1. Its owner, if any, can write no more.

A repeat finds nothing and says so.

keys: run, others...
args: channel, forced
returns: DELETED keys | LIVE ms_left owner | MISSING
events: publishes "deleted" on `channel`
]]
--- @include "clock"
local run = KEYS[1]
local channel, forced = ARGV[1], ARGV[2]

local held = redis.call('HMGET', run, 'token', 'lease_ms', 'owner')
if not held[1] then
  return { 'MISSING' }
end
local ms_left = tonumber(held[2]) - now_ms()
if forced ~= '1' and held[1] ~= '' and ms_left > 0 then
  return { 'LIVE', ms_left, held[3] }
end
local removed = redis.call('DEL', unpack(KEYS))
redis.call('PUBLISH', channel, 'deleted')
return { 'DELETED', removed }
