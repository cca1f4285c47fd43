--[[
Correlation ids that somebody waits for, or did, and that have not been looked at for long; for one caller only, because
they become due again only after `again_ms`.

keys: watched
args: limit, again_ms
returns: OK correlations
]]
--- @include "clock"
local watched = KEYS[1]
local limit, again_ms = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = now_ms()
local found = redis.call('ZRANGEBYSCORE', watched, '-inf', now, 'LIMIT', 0, limit)
for _, correlation in ipairs(found) do
  redis.call('ZADD', watched, now + again_ms, correlation)
end
return { 'OK', found }
