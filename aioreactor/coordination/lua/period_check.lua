--[[
Whether the calendar bucket of now has a marker. `buckets` are pairs of a start and an end in ms, computed by a clock
that may be wrong: the server's clock chooses; if none of them fits, it says what time it is.

keys: period
args: field, buckets...
returns: FREE start | CLAIMED start marked_ms label | CLOCK now_ms
]]
--- @include "clock"
local period = KEYS[1]
local field = ARGV[1]

local now = now_ms()
for i = 2, #ARGV, 2 do
  local start = tonumber(ARGV[i])
  if start <= now and now < tonumber(ARGV[i + 1]) then
    local row = redis.call('HGET', period, field) or ''
    local marked, at, label = string.match(row, '^(%-?%d+) (%d+) (.*)$')
    -- A later bucket is marked only after the clock was set back; what it protects has happened.
    if marked and tonumber(marked) >= start then
      return { 'CLAIMED', start, tonumber(at), label }
    end
    return { 'FREE', start }
  end
end
return { 'CLOCK', now }
