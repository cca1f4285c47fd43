--[[
Who holds a key and who stands in line: lists of token, milliseconds left, "fence since_ms label"; and of token,
"alive_ms grace_ms heard channel label".

keys: holders, facts, queue, waiters
args:
returns: REPORT now_ms limit holding waiting
]]
--- @include "clock"
local holders, facts, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local now = now_ms()
local holding, waiting = {}, {}
local found = redis.call('ZRANGE', holders, 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  local left = tonumber(found[i + 1]) - now
  if left > 0 then
    holding[#holding + 1] = { found[i], left, redis.call('HGET', facts, 't:' .. found[i]) or '' }
  end
end
for _, token in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting[#waiting + 1] = { token, redis.call('HGET', waiters, token) or '' }
end
return { 'REPORT', now, tonumber(redis.call('HGET', facts, 'limit') or 0), holding, waiting }
