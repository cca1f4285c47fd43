--[[
Have one that stands in line ask again: there is something that it has to see.

Repeatable: being called twice does no harm.

keys: waiters
args: token
returns: CALLED | GONE
events: publishes "token 0" on the channel of the one that is called
]]
local waiters = KEYS[1]
local token = ARGV[1]

local channel = string.match(redis.call('HGET', waiters, token) or '', '^%d+ %d+ %d (%S+)')
if not channel then
  return { 'GONE' }
end
redis.call('PUBLISH', channel, token .. ' 0')
return { 'CALLED' }
