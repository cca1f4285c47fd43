--[[
List a run under these labels and no others; what is older than the index knows is passed over.

`live_in_ms` and `expire_in_ms`: when the sweeper is to look at it as a living or as an expired run; -1 is never. Lists
that are touched besides the given keys have the same slot.

keys: rows, live, expiring
args: run_id, created_ms, ver, live_in_ms, expire_in_ms, labels
returns: OK | STALE
]]
--- @include "clock"
--- @include "index"
local rows, live, expiring = KEYS[1], KEYS[2], KEYS[3]
local run_id, created_ms, ver = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local live_in_ms, expire_in_ms, labels = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local before = redis.call('HGET', rows, run_id)
local old_labels = {}
if before then
  local old_created_ms, old_ver
  old_created_ms, old_ver, old_labels = parse_row(before)
  if created_ms < old_created_ms or (created_ms == old_created_ms and ver < old_ver) then
    return { 'STALE' }
  end
end
local row = string.format('%d %d\n', created_ms, ver) .. labels
local _, _, new_labels = parse_row(row)
for label in pairs(old_labels) do
  if not new_labels[label] then
    redis.call('ZREM', list_key(rows, label), run_id)
  end
end
for label in pairs(new_labels) do
  redis.call('ZADD', list_key(rows, label), created_ms, run_id)
end
redis.call('HSET', rows, run_id, row)
for due, in_ms in pairs({ [live] = live_in_ms, [expiring] = expire_in_ms }) do
  if in_ms < 0 then
    redis.call('ZREM', due, run_id)
  else
    redis.call('ZADD', due, now_ms() + in_ms, run_id)
  end
end
return { 'OK' }
