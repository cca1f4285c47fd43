--[[
Take a run that nobody holds, or whose lease is past, if its status is in `allowed` (",pending,running,").

`status` is what it becomes, empty leaves it. A run that had ended and begins anew (undo) expires no more.
`recoveries` counts how often in a row it was taken from somebody who did not let it go; progress begins it anew.
Repeatable: a token is new for each take, so one that holds the run already took it before.

keys: run, others...
args: token, ttl_ms, owner, status, allowed
returns: TAKEN ver fence status now_ms recoveries | MOVED ver fence status now_ms recoveries created_ms labels
  | HELD ms_left owner | REFUSED status | MISSING
]]
--- @include "clock"
--- @include "statuses"
local run = KEYS[1]
local token, ttl_ms, owner, status, allowed = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local row = redis.call('HMGET', run, 'status', 'token', 'lease_ms', 'owner', 'ver', 'fence', 'created_ms', 'labels',
  'recoveries')
local before, held, lease_ms = row[1], row[2], tonumber(row[3])
if not before then
  return { 'MISSING' }
end
local now, ver, fence, recoveries = now_ms(), tonumber(row[5]), tonumber(row[6]), tonumber(row[9] or 0)
if held ~= token then
  if held ~= '' and lease_ms > now then
    return { 'HELD', lease_ms - now, row[4] }
  elseif not listed(allowed, before) then
    return { 'REFUSED', before }
  end
  ver, fence = ver + 1, fence + 1
  if TERMINAL[before] then
    for _, key in ipairs(KEYS) do
      redis.call('PERSIST', key)
    end
    redis.call('HDEL', run, 'ended_ms', 'outcome', 'recoveries')
    redis.call('HINCRBY', run, 'undos', 1)
    recoveries = 0
  elseif held ~= '' then
    recoveries = redis.call('HINCRBY', run, 'recoveries', 1)
  end
end
local after = status ~= '' and status or before
redis.call('HDEL', run, 'woken')
redis.call('HSET', run, 'token', token, 'owner', owner, 'lease_ms', now + ttl_ms, 'ver', ver, 'fence', fence,
  'status', after, 'updated_ms', now, 'due_ms', 0)
if status ~= '' and (held == token or before ~= status) then
  return { 'MOVED', ver, fence, after, now, recoveries, tonumber(row[7]), row[8] }
end
return { 'TAKEN', ver, fence, after, now, recoveries }
