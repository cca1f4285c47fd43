--[[
A last checkpoint before the run is let go, unfinished: paused, or handed to somebody else. Tells who waits.

`due_ms` counts from now: before then nobody is expected to take it; at once if it was `woken` meanwhile. `changes` are pairs of scalars, pairs of steps, dropped steps, trace entries. An empty `status` leaves it as it is.
Repeatable: `write` tells a repeat.

keys: run, steps, trace, requests
args: token, ver, write, channel, due_ms, status, n_scalars, n_steps, n_dropped, changes...
returns: OK ver asked | MOVED ver asked created_ms labels | LOST why
events: publishes the new status on `channel` if it changed, and the version on the channel `trace` while somebody
  follows it
]]
--- @include "clock"
--- @include "changes"
local run, steps, trace, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ver, write, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local due_ms, status = tonumber(ARGV[5]), ARGV[6]
local n_scalars, n_steps, n_dropped = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])

--- @include "fence"
if not repeated then
  local now = now_ms()
  redis.call('HSET', run, 'ver', ver + 1, 'write', write, 'token', '', 'owner', '', 'lease_ms', 0,
    'updated_ms', now, 'due_ms', due_ms > 0 and now + due_ms or 0,
    'status', status ~= '' and status or before[4])
  if before[5] and n_steps + n_dropped > 0 then
    redis.call('HDEL', run, 'recoveries')
  end
  write_changes(run, steps, trace, 10, n_scalars, n_steps, n_dropped)
  --- @include "told"
  if redis.call('HDEL', run, 'woken') == 1 then
    redis.call('HSET', run, 'due_ms', 0)
  end
  if status ~= '' and status ~= before[4] then
    redis.call('PUBLISH', channel, status)
  end
end
--- @include "accepted"
