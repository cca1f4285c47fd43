--[[
Runs that are in all of these lists, newest first, after a place and not older than `since_ms`.

The smallest list leads, and only a part of it is looked at in one call, so that a page may be short, or empty, before
the end. A place is the time and id of the last run looked at; the first is +inf and an empty id.

keys: rows, lists...
args: at_ms, at_id, since_ms, limit
returns: OK at_ms at_id pairs | END pairs
]]
local rows = KEYS[1]
local at_ms, at_id, since_ms, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local SCANNED = 1000

local lead, smallest = KEYS[2], math.huge
for place = 2, #KEYS do
  local size = redis.call('ZCARD', KEYS[place])
  if size < smallest then
    lead, smallest = KEYS[place], size
  end
end

local function in_all(run_id)
  for place = 2, #KEYS do
    if KEYS[place] ~= lead and not redis.call('ZSCORE', KEYS[place], run_id) then
      return false
    end
  end
  return true
end

-- Sorted sets compare bytes, Lua's own operators follow the server's locale.
local function below(one, other)
  for place = 1, math.min(#one, #other) do
    local a, b = string.byte(one, place), string.byte(other, place)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local found, offset, scanned = {}, 0, 0
local score, run_id = at_ms, at_id
while scanned < SCANNED do
  local batch = redis.call('ZREVRANGEBYSCORE', lead, at_ms, since_ms, 'WITHSCORES', 'LIMIT', offset, 100)
  for place = 1, #batch, 2 do
    -- Those of the same millisecond as the last page's last run may have been on it.
    if batch[place + 1] ~= at_ms or below(batch[place], at_id) then
      run_id, score, scanned = batch[place], batch[place + 1], scanned + 1
      if in_all(run_id) then
        found[#found + 1] = run_id
        found[#found + 1] = redis.call('HGET', rows, run_id) or ''
        if #found == 2 * limit then
          return { 'OK', score, run_id, found }
        end
      end
    end
  end
  if #batch < 200 then
    return { 'END', found }
  end
  offset = offset + 100
end
return { 'OK', score, run_id, found }
