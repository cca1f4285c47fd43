--[[
A run's status and its trace from the place `from` on, `most` entries of it; for `watch_ms` from now its writes tell.

Who follows a run comes again before that time is over, and at each telling. A run that has ended is written no more.

keys: run, trace
args: from, most, watch_ms
returns: OK status entries | MISSING
events: `run_save` and `run_release` publish the record's version on the channel `trace`
]]
--- @include "clock"
--- @include "statuses"
local run, trace = KEYS[1], KEYS[2]
local from, most, watch_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local status = redis.call('HGET', run, 'status')
if not status then
  return { 'MISSING' }
elseif not TERMINAL[status] then
  redis.call('HSET', run, 'watched_ms', now_ms() + watch_ms)
end
return { 'OK', status, redis.call('LRANGE', trace, from, from + most - 1) }
