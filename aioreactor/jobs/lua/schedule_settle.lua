--[[
The ticks of a schedule up to `dealt_ms` have been dealt with by who has its claim; the last run that it started is
`run_id`. With `hold_ms` 0 the claim ends, else it goes on for so long. Repeatable: a repeat that ends it is answered LOST,
after which the holder looks again.

keys: schedule
args: token, dealt_ms, run_id, hold_ms
returns: OK | LOST
]]
--- @include "clock"
local schedule = KEYS[1]
local token, dealt_ms, run_id, hold_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local known = redis.call('HMGET', schedule, 'token', 'last_ms')
if known[1] ~= token then
  return { 'LOST' }
end
local last = math.max(dealt_ms, tonumber(known[2]))
redis.call('HSET', schedule, 'last_ms', string.format('%.0f', last), 'run_id', run_id)
if hold_ms > 0 then
  redis.call('HSET', schedule, 'until_ms', string.format('%.0f', now_ms() + hold_ms))
else
  redis.call('HDEL', schedule, 'token', 'until_ms')
end
return { 'OK' }
