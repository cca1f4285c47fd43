--[[
Take their slots from all holders, whoever they are, and give them to those in line; for operators.

keys: holders, facts, queue, waiters
args:
returns: FREED labels
events: publishes "token fence" on the channel of each that was given a slot
]]
local holders, facts, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
--- @include "slots"

purge()
local labels = {}
for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  labels[#labels + 1] = string.match(redis.call('HGET', facts, 't:' .. token) or '', '^%d+ %d+ (.*)$') or ''
  redis.call('ZREM', holders, token)
  redis.call('HDEL', facts, 't:' .. token)
end
settle(tonumber(redis.call('HGET', facts, 'limit') or 1))
return { 'FREED', labels }
