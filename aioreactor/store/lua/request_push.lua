--[[
Leave a request for the owner of a run whose status is in `allowed` and who has not ended; ring for whoever holds it.

Requests are numbered in order and stay until the run goes; the owner notes in its own writes how many it has served.
Repeatable: the first request of an id counts, for good.

keys: run, requests
args: id, request, channel, allowed
returns: OK number status ms_left | KNOWN number same status ms_left | REFUSED status | MISSING
events: publishes the request's number on `channel`
]]
--- @include "clock"
--- @include "statuses"
local run, requests = KEYS[1], KEYS[2]
local id, request, channel, allowed = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local row = redis.call('HMGET', run, 'status', 'token', 'lease_ms')
local status = row[1]
if not status then
  return { 'MISSING' }
end
local ms_left = row[2] ~= '' and math.max(tonumber(row[3]) - now_ms(), 0) or 0
local known = redis.call('HGET', requests, id)
if known then
  local number, before = string.match(known, '^(%d+)\n(.*)$')
  return { 'KNOWN', tonumber(number), before == request and 1 or 0, status, ms_left }
elseif TERMINAL[status] or not listed(allowed, status) then
  return { 'REFUSED', status }
end
local number = redis.call('HLEN', requests) + 1
redis.call('HSET', requests, id, number .. '\n' .. request)
redis.call('PUBLISH', channel, number)
return { 'OK', number, status, ms_left }
