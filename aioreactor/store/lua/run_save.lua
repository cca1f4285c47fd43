--[[
A checkpoint: writes what changed, and extends the lease. One with steps is progress: recoveries count anew.

`changes` are pairs of scalars, pairs of steps, dropped steps, trace entries. An empty `status` leaves it as it is.
Repeatable: `write` tells a repeat.

keys: run, steps, trace, requests
args: token, ver, write, ttl_ms, status, n_scalars, n_steps, n_dropped, changes...
returns: OK ver asked | MOVED ver asked created_ms labels | LOST why
events: publishes the version on the channel `trace` while somebody follows it
]]
--- @include "clock"
--- @include "changes"
local run, steps, trace, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ver, write, ttl_ms, status = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local n_scalars, n_steps, n_dropped = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

--- @include "fence"
if not repeated then
  local now = now_ms()
  redis.call('HSET', run, 'ver', ver + 1, 'write', write, 'lease_ms', now + ttl_ms, 'updated_ms', now)
  if status ~= '' then
    redis.call('HSET', run, 'status', status)
  end
  -- Only a step that moved is progress: a status is written again by each who takes up a rollback.
  if before[5] and n_steps + n_dropped > 0 then
    redis.call('HDEL', run, 'recoveries')
  end
  write_changes(run, steps, trace, 9, n_scalars, n_steps, n_dropped)
  --- @include "told"
end
--- @include "accepted"
