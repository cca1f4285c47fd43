--[[
As `fan_claim`, of elements that are to be rolled back; with what they came to. Wakes the run when there are none.

keys: run, fan, out, busy
args: path, token, ttl_ms, wanted, channel
returns: DEALT indexes records more wake shared items | GONE
events: publishes the path on `channel`
]]
--- @include "clock"
--- @include "statuses"
--- @include "fan"
--- @include "fan_wake"
--- @include "fan_deal"
--- @include "fan_deal_back"
local run, fan, out, busy = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local path, token, ttl_ms, wanted, channel = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local back, over = fan_text(fan, path, 'back'), fan_text(fan, path, 'back_over')
if back == '' or over ~= '' then
  return { 'GONE' }
end
local now = now_ms()
fan_lease(fan, path, token, now + ttl_ms)
fan_reclaim(fan, busy, path, '', now)
local dealt, records, more = fan_deal_back(fan, out, busy, path, token, wanted)
local wake = nil
if fan_is_back(fan, path) then
  redis.call('HSET', fan, fan_field(path, 'back_over'), '1')
  wake = fan_wake(run, channel, path)
end
local items = fan_items(fan, path, fan_number(fan, path, 'chunk'), dealt)
return { 'DEALT', dealt, records, more, wake or '-', fan_text(fan, path, 'shared'), items }
