--[[
What is noted with a hold: pairs of a token and "since_us text".

keys: waits
args:
returns: LISTED rows
]]
local waits = KEYS[1]

return { 'LISTED', redis.call('HGETALL', waits) }
