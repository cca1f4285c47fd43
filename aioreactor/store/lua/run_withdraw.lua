--[[
End a run that nobody has taken yet, as cancelled; whoever was to execute it finds it over. Tells who waits.

A `retention_ms` of 0 keeps the run for good. Repeatable: it is refused as cancelled then.

keys: run, others...
args: channel, outcome, retention_ms
returns: ENDED ver created_ms labels | REFUSED status | MISSING
events: publishes the status on `channel`
]]
--- @include "clock"
local run = KEYS[1]
local channel, outcome, retention_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

local row = redis.call('HMGET', run, 'status', 'ver', 'created_ms', 'labels')
if not row[1] then
  return { 'MISSING' }
elseif row[1] ~= 'pending' then
  return { 'REFUSED', row[1] }
end
local now, ver = now_ms(), tonumber(row[2]) + 1
redis.call('HSET', run, 'status', 'cancelled', 'ver', ver, 'outcome', outcome, 'updated_ms', now, 'ended_ms', now)
if retention_ms > 0 then
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, now + retention_ms)
  end
end
redis.call('PUBLISH', channel, 'cancelled')
return { 'ENDED', ver, tonumber(row[3]), row[4] }
