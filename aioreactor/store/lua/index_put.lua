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

local now, added, known, passed_over = now_ms(), {}, {}, 0

local function add(key, score, run_id)
  local members = added[key]
  if not members then
    members = {}
    added[key] = members
  end
  members[#members + 1] = score
  members[#members + 1] = run_id
end

-- Runs that come together mostly have the same labels.
local function labels_in(text)
  if not known[text] then
    local _, _, labels = parse_row('0 0\n' .. text)
    known[text] = labels
  end
  return known[text]
end

local function look(due, in_ms, run_id, is_new)
  if in_ms >= 0 then
    add(due, now + in_ms, run_id)
  elseif not is_new then
    redis.call('ZREM', due, run_id)
  end
end

local function put(run_id, created_ms, ver, live_in_ms, expire_in_ms, text)
  local before, labels = redis.call('HGET', rows, run_id), labels_in(text)
  if before then
    local old_created_ms, old_ver, old_labels = parse_row(before)
    if created_ms < old_created_ms or (created_ms == old_created_ms and ver < old_ver) then
      passed_over = passed_over + 1
      return
    end
    for label in pairs(old_labels) do
      if not labels[label] then
        redis.call('ZREM', list_key(rows, label), run_id)
      end
    end
  end
  for label in pairs(labels) do
    add(list_key(rows, label), created_ms, run_id)
  end
  redis.call('HSET', rows, run_id, string.format('%d %d\n', created_ms, ver) .. text)
  look(live, live_in_ms, run_id, false)
  look(expiring, expire_in_ms, run_id, not before)
end

for at = 1, #ARGV, 6 do
  put(ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5])
end
for key, members in pairs(added) do
  for from = 1, #members, 4000 do
    redis.call('ZADD', key, unpack(members, from, math.min(from + 3999, #members)))
  end
end
return { 'OK', passed_over }
