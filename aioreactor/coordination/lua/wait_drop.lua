--[[
Somebody inside a hold does not wait any more.

Repeatable: the second time there is nothing.

keys: waits
args: token
returns: DROPPED | NOTHING
]]
local waits = KEYS[1]
local token = ARGV[1]

return { redis.call('HDEL', waits, token) == 1 and 'DROPPED' or 'NOTHING' }
