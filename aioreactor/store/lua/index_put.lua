--[[
List runs under these labels and no others; what is older than the index knows is passed over.

`entries` are run_id, created_ms, ver, live_in_ms, expire_in_ms, labels; no run is in there twice. The spans say when
the sweeper is to look at it as a living or as an expired run; -1 is never. Lists that are touched besides the given
keys have the same slot.

keys: rows, live, expiring
args: entries...
returns: OK passed_over
]]
--- @include "clock"
--- @include "index"
local rows, live, expiring = KEYS[1], KEYS[2], KEYS[3]

local now, alone, added, known, passed_over = now_ms(), #ARGV == 6, {}, {}, 0

local function add(key, score, run_id)
  if alone then
    return redis.call('ZADD', key, score, run_id)
  end
  local members = added[key] or {}
  added[key] = members
  members[#members + 1] = score
  members[#members + 1] = run_id
end

-- Runs that come together mostly have the same labels.
local function labels_in(text)
  known[text] = known[text] or select(3, parse_row('0 0\n' .. text))
  return known[text]
end

-- A run stays where it was listed already.
local function list(run_id, created_ms, ver, text)
  local before, labels, listed = redis.call('HGET', rows, run_id), labels_in(text), {}
  if before then
    local old_created_ms, old_ver, old_labels = parse_row(before)
    if created_ms < old_created_ms or (created_ms == old_created_ms and ver < old_ver) then
      return false
    end
    for label in pairs(old_labels) do
      if not labels[label] then
        redis.call('ZREM', list_key(rows, label), run_id)
      end
    end
    listed = created_ms == old_created_ms and old_labels or listed
  end
  for label in pairs(labels) do
    if not listed[label] then
      add(list_key(rows, label), created_ms, run_id)
    end
  end
  redis.call('HSET', rows, run_id, string.format('%d %d\n', created_ms, ver) .. text)
  return true
end

local function look(due, in_ms, run_id)
  if in_ms < 0 then
    redis.call('ZREM', due, run_id)
  else
    add(due, now + in_ms, run_id)
  end
end

for at = 1, #ARGV, 6 do
  local run_id = ARGV[at]
  if list(run_id, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 5]) then
    look(live, tonumber(ARGV[at + 3]), run_id)
    look(expiring, tonumber(ARGV[at + 4]), run_id)
  else
    passed_over = passed_over + 1
  end
end
for key, members in pairs(added) do
  for from = 1, #members, 4000 do
    redis.call('ZADD', key, unpack(members, from, math.min(from + 3999, #members)))
  end
end
return { 'OK', passed_over }
