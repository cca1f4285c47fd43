--[[
Give a slot back, or leave the line; the slot goes to the next in line at once.

Who does not know whether it holds, waits, or neither, is rid of it either way.
Repeatable: the second time there is nothing to give back.

keys: holders, facts, queue, waiters
args: token
returns: RELEASED | LEFT | NOTHING
events: publishes "token fence" on the channel of each that was given a slot
]]
local holders, facts, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]

local had = redis.call('ZREM', holders, token)
redis.call('HDEL', facts, 't:' .. token)
if redis.call('EXISTS', queue) == 0 then
  -- The facts are forgotten a while after the lease would have ended.
  return { had == 1 and 'RELEASED' or 'NOTHING' }
end
--- @include "slots"
local left = 0
if had == 0 then
  left = redis.call('ZREM', queue, token)
  redis.call('HDEL', waiters, token)
end
purge()
settle(tonumber(redis.call('HGET', facts, 'limit') or 1))
return { had == 1 and 'RELEASED' or left == 1 and 'LEFT' or 'NOTHING' }
