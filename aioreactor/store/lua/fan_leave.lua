--[[
A session ends: what it has, it gives back, for others to execute. Repeatable.

keys: fan, busy
args: path, token
returns: LEFT again
]]
--- @include "fan"
local fan, busy = KEYS[1], KEYS[2]
local path, token = ARGV[1], ARGV[2]

return { 'LEFT', fan_reclaim(fan, busy, path, token, 0) }
