--[[
Leave a request for the owner of a run whose status is in `allowed` and who has not ended; ring for whoever holds it.

Requests are numbered in order and stay until the run goes; the owner notes in its own writes how many it has served.
One that `wakes` makes a run that nobody holds due at once, also a paused one. After `until_ms` (0 is never) it is LATE.
Repeatable: the first request of an id counts, for good.

keys: run, requests
args: id, request, channel, everywhere, run_id, allowed, wakes, until_ms
returns: OK number status ms_left | KNOWN number same status ms_left | REFUSED status | LATE status | MISSING
events: publishes the request's number on `channel`, and the run's id on `everywhere`
]]
--- @include "clock"
--- @include "statuses"
local run, requests = KEYS[1], KEYS[2]
local id, request, channel, everywhere, run_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local allowed, wakes, until_ms = ARGV[6], ARGV[7], tonumber(ARGV[8])

local row = redis.call('HMGET', run, 'status', 'token', 'lease_ms')
local status = row[1]
if not status then
  return { 'MISSING' }
end
local now = now_ms()
local ms_left = row[2] ~= '' and math.max(tonumber(row[3]) - now, 0) or 0
local known = redis.call('HGET', requests, id)
if known then
  local number, before = string.match(known, '^(%d+)\n(.*)$')
  return { 'KNOWN', tonumber(number), before == request and 1 or 0, status, ms_left }
elseif TERMINAL[status] or not listed(allowed, status) then
  return { 'REFUSED', status }
elseif until_ms > 0 and now > until_ms then
  return { 'LATE', status }
end
local number = redis.call('HLEN', requests) + 1
redis.call('HSET', requests, id, number .. '\n' .. request)
if wakes == '1' then
  redis.call('HSET', run, 'asked', number)
  if row[2] == '' then
    redis.call('HSET', run, 'due_ms', 0, 'updated_ms', now)
  end
end
redis.call('PUBLISH', channel, number)
redis.call('PUBLISH', everywhere, run_id)
return { 'OK', number, status, ms_left }
