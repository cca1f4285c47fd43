--[[
The line of a key: lists of position and "beat_ms poison_ms stage token channel label"; `failed` is 0 for none.

keys: line, seats, state
args:
returns: REPORT now_ms epoch handed_out failed positions
]]
--- @include "clock"
local line, seats, state = KEYS[1], KEYS[2], KEYS[3]

local positions = {}
for _, position in ipairs(redis.call('ZRANGE', line, 0, -1)) do
  positions[#positions + 1] = { position, redis.call('HGET', seats, position) or '' }
end
return { 'REPORT', now_ms(), redis.call('HGET', state, 'epoch') or '',
  tonumber(redis.call('HGET', state, 'next') or 0), tonumber(redis.call('HGET', state, 'failed') or 0), positions }
