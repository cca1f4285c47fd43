--[[
Take a run that is gone out of the index, unless the index has learnt of a new one since `seen` (its row).

keys: rows, live, expiring
args: run_id, seen
returns: OK | STALE
]]
--- @include "index"
local rows, live, expiring = KEYS[1], KEYS[2], KEYS[3]
local run_id, seen = ARGV[1], ARGV[2]

local row = redis.call('HGET', rows, run_id) or ''
if row ~= seen then
  return { 'STALE' }
end
local _, _, labels = parse_row(row)
for label in pairs(labels) do
  redis.call('ZREM', list_key(rows, label), run_id)
end
redis.call('HDEL', rows, run_id)
redis.call('ZREM', live, run_id)
redis.call('ZREM', expiring, run_id)
return { 'OK' }
