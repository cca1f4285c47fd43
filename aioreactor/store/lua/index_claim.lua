--[[
The runs whose time in `due` (live, expiring) has come, and what the index knows of each; for one caller only, because
they become due again only after `again_ms`.

keys: due, rows
args: limit, again_ms
returns: OK pairs
]]
--- @include "clock"
local due, rows = KEYS[1], KEYS[2]
local limit, again_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = now_ms()
local pairs_found = {}
for _, run_id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)) do
  redis.call('ZADD', due, now + again_ms, run_id)
  pairs_found[#pairs_found + 1] = run_id
  pairs_found[#pairs_found + 1] = redis.call('HGET', rows, run_id) or ''
end
return { 'OK', pairs_found }
