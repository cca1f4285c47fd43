--[[
Create a run that does not exist yet; with a token its lease is taken at once (running), else it is pending.

A run that has ended with a status in `replaced` (",failed,halted,") makes room. `deadline_ms` counts from now, 0
is none; so does `due_ms`, before which nobody is expected to take it. `changes` are pairs of scalars, pairs of steps, and trace entries. Repeatable: `write` tells a repeat.

keys: run, steps, trace, others...
args: write, token, ttl_ms, owner, inputs, replaced, deadline_ms, due_ms, n_scalars, n_steps, changes...
returns: CREATED ver fence created_ms | EXISTS status ver same_inputs ms_left now_ms
]]
--- @include "clock"
--- @include "statuses"
--- @include "changes"
local run, steps, trace = KEYS[1], KEYS[2], KEYS[3]
local write, token, ttl_ms, owner = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local inputs, replaced, deadline_ms, due_ms = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local n_scalars, n_steps = tonumber(ARGV[9]), tonumber(ARGV[10])

local now = now_ms()
local old = redis.call('HMGET', run, 'status', 'ver', 'fence', 'token', 'lease_ms', 'created_by', 'created_ms')
local status, ver, fence = old[1], 1, 0
if old[6] == write then
  return { 'CREATED', tonumber(old[2]), tonumber(old[3]), tonumber(old[7]) }
end
if status then
  if not (TERMINAL[status] and listed(replaced, status)) then
    local same = redis.call('HGET', run, 'inputs') == inputs and 1 or 0
    local ms_left = old[4] ~= '' and math.max(tonumber(old[5]) - now, 0) or 0
    return { 'EXISTS', status, tonumber(old[2]), same, ms_left, now }
  end
  -- Versions and fences go on, so that what belonged to the old run can be told from the new.
  ver, fence = tonumber(old[2]) + 1, tonumber(old[3])
  redis.call('DEL', unpack(KEYS))
end
local lease_ms = 0
status = 'pending'
if token ~= '' then
  status, fence, lease_ms = 'running', fence + 1, now + ttl_ms
end
redis.call('HSET', run, 'status', status, 'ver', ver, 'write', write, 'created_by', write, 'token', token,
  'owner', owner, 'fence', fence, 'lease_ms', lease_ms, 'inputs', inputs, 'created_ms', now, 'updated_ms', now,
  'deadline_ms', deadline_ms > 0 and now + deadline_ms or 0, 'due_ms', due_ms > 0 and now + due_ms or 0,
  unpack(ARGV, 11, 10 + 2 * n_scalars))
if #ARGV > 10 + 2 * n_scalars then
  write_changes(run, steps, trace, 11 + 2 * n_scalars, 0, n_steps, 0)
end
return { 'CREATED', ver, fence, now }
