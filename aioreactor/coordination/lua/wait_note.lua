--[[
Note with a hold that somebody inside it waits; one that is noted already keeps its moment.

What is noted says where to look, not what is so: whoever waits stands in line. `keep_ms` from now it is forgotten.
Repeatable: the second time it is there.

keys: waits
args: token, keep_ms, text
returns: NOTED
]]
--- @include "keep"
local waits = KEYS[1]
local token, keep_ms, text = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local time = redis.call('TIME')
redis.call('HSETNX', waits, token, string.format('%.0f %s', time[1] * 1000000 + time[2], text))
keep(waits, keep_ms)
return { 'NOTED' }
