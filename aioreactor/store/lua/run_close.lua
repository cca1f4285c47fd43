--[[
End a run: the last changes, its outcome and terminal status; lets it go, starts its retention, tells who waits.

`changes` are pairs of scalars, pairs of steps, dropped steps, trace entries. A `retention_ms` of 0 keeps the run for
good. Who ended a run holds it no more, so no terminal status is ever overwritten. Repeatable: `write` tells a repeat.

keys: run, steps, trace, requests, others...
args: token, ver, write, channel, status, outcome, retention_ms, n_scalars, n_steps, n_dropped, changes...
returns: OK ver asked | MOVED ver asked created_ms labels | LOST why
events: publishes the status on `channel`
]]
--- @include "clock"
--- @include "changes"
local run, steps, trace, requests = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ver, write, channel, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local outcome, retention_ms = ARGV[6], tonumber(ARGV[7])
local n_scalars, n_steps, n_dropped = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

--- @include "fence"
if not repeated then
  local now = now_ms()
  redis.call('HSET', run, 'ver', ver + 1, 'write', write, 'token', '', 'owner', '', 'lease_ms', 0, 'status', status,
    'outcome', outcome, 'updated_ms', now, 'ended_ms', now)
  write_changes(run, steps, trace, 11, n_scalars, n_steps, n_dropped)
  if retention_ms > 0 then
    for _, key in ipairs(KEYS) do
      redis.call('PEXPIREAT', key, now + retention_ms)
    end
  end
  redis.call('PUBLISH', channel, status)
end
--- @include "accepted"
