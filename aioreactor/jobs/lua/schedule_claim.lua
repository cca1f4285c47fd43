--[[
Take the ticks of a schedule that are due, if `tick_ms` is one of them by the server's clock and nobody else has them;
with 0 only look. What is known of it is kept for `keep_ms` from now.

`last_ms` is the moment up to which all ticks have been dealt with. A schedule that was unknown has none before now; one
whose `spec` has changed has none from more than `late_ms` before now, since they were another's. The holder's claim ends
by itself after `hold_ms`. Repeatable: the holder is told the same again.

keys: schedule
args: spec, tick_ms, token, hold_ms, late_ms, keep_ms
returns: MINE now_ms last_ms run_id | WAIT now_ms last_ms busy_ms
]]
--- @include "clock"
local schedule = KEYS[1]
local spec, tick_ms, token = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local hold_ms, late_ms, keep_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local now = now_ms()
local known = redis.call('HMGET', schedule, 'spec', 'last_ms', 'token', 'until_ms', 'run_id')
local last = tonumber(known[2] or now)
if known[1] ~= spec then
  last = known[1] and math.max(last, now - late_ms) or last
  redis.call('HSET', schedule, 'spec', spec, 'last_ms', string.format('%.0f', last))
end
redis.call('PEXPIRE', schedule, keep_ms)
local busy = known[3] and known[3] ~= token and math.max(tonumber(known[4]) - now, 0) or 0
if tick_ms <= last or tick_ms > now or busy > 0 then
  return { 'WAIT', now, last, busy }
end
redis.call('HSET', schedule, 'token', token, 'until_ms', string.format('%.0f', now + hold_ms))
return { 'MINE', now, last, known[5] or '' }
