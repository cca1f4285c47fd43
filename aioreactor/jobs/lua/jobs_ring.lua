--[[
Enqueue jobs in arq's own form and wake workers, at most `wakes` of them.

A job begins `due_ms` from now by the server's clock, and its body is kept for `keep_ms` longer. `skip` is the length
of what stands before the id in a job's key. One that is in the queue already is not enqueued again.
Repeatable: the id of a job is its sender's, so that a repeat finds its key; one that is done by then is delivered
twice, which its receiver bears.

keys: queue, wake, jobs...
args: due_ms, keep_ms, skip, wakes, wake_ms, bodies...
returns: OK added
]]
--- @include "clock"
local queue, wake = KEYS[1], KEYS[2]
local due_ms, keep_ms, skip = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local wakes, wake_ms = tonumber(ARGV[4]), tonumber(ARGV[5])

local score, ttl_ms = string.format('%.0f', now_ms() + due_ms), due_ms + keep_ms
local members = {}
for i = 3, #KEYS do
  local id = string.sub(KEYS[i], skip + 1)
  -- A body without a place in the queue would keep its ring from ever being repeated.
  if redis.call('SET', KEYS[i], ARGV[i + 3], 'PX', ttl_ms, 'NX') or not redis.call('ZSCORE', queue, id) then
    members[#members + 1] = score
    members[#members + 1] = id
  end
end
-- Below the limit of `unpack`, and even.
for from = 1, #members, 4000 do
  redis.call('ZADD', queue, unpack(members, from, math.min(from + 3999, #members)))
end
local added = #members / 2
for _ = 1, math.min(added, wakes) do
  redis.call('RPUSH', wake, '1')
end
if added > 0 and wakes > 0 then
  redis.call('LTRIM', wake, -wakes, -1)
  redis.call('PEXPIRE', wake, wake_ms)
end
return { 'OK', added }
