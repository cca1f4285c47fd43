--[[
Mark a calendar bucket as done; a bucket that is marked, or an earlier one, is left as it is.

keys: period
args: field, start, keep_ms, label
returns: MARKED | ALREADY
]]
--- @include "clock"
--- @include "keep"
local period = KEYS[1]
local field, start, keep_ms, label = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local marked = string.match(redis.call('HGET', period, field) or '', '^%-?%d+')
if marked and tonumber(marked) >= start then
  return { 'ALREADY' }
end
redis.call('HSET', period, field, string.format('%.0f %.0f %s', start, now_ms(), label))
keep(period, keep_ms)
return { 'MARKED' }
