--[[
Begin or go on with a session: its lease, and up to `wanted` elements to execute.

Elements of sessions whose lease is past are dealt again. `wake` is the queue of the run when its source is to be read
on, else "-". Repeatable: elements dealt to a lost reply stay the session's; it gives them back when it ends.

keys: run, fan, busy
args: path, token, ttl_ms, wanted, channel
returns: DEALT indexes more doomed wake shared items | GONE
]]
--- @include "clock"
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
--- @include "fan_deal"
local run, fan, busy = KEYS[1], KEYS[2], KEYS[3]
local path, token, ttl_ms, wanted, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local status = redis.call('HGET', run, 'status')
if not status or TERMINAL[status] or redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'GONE' }
end
local now = now_ms()
fan_lease(fan, path, token, now + ttl_ms)
fan_reclaim(fan, busy, path, '', now)
local dealt, more, doomed, is_low = fan_deal(fan, busy, path, token, wanted)
local wake = is_low and fan_wake(run, channel, path) or nil
local items = fan_items(fan, path, fan_number(fan, path, 'chunk'), dealt)
return { 'DEALT', dealt, more, doomed and 1 or 0, wake or '-', fan_text(fan, path, 'shared'), items }
