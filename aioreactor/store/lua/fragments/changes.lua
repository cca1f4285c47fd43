-- Writes what changed. ARGV from `first` on holds pairs of scalars, pairs of steps, dropped steps, trace entries.
-- Slices keep `unpack` below Lua's limit of values on its stack; they are even, so that no pair is cut.
local SLICE = 4000
local function write_slices(command, key, first, last)
  for from = first, last, SLICE do
    redis.call(command, key, unpack(ARGV, from, math.min(from + SLICE - 1, last)))
  end
end

local function write_changes(run, steps, trace, first, scalars, changed, dropped)
  local steps_at = first + 2 * scalars
  local dropped_at = steps_at + 2 * changed
  local trace_at = dropped_at + dropped
  if scalars > 0 then
    write_slices('HSET', run, first, steps_at - 1)
  end
  if changed > 0 then
    write_slices('HSET', steps, steps_at, dropped_at - 1)
  end
  if dropped > 0 then
    write_slices('HDEL', steps, dropped_at, trace_at - 1)
  end
  if trace_at <= #ARGV then
    write_slices('RPUSH', trace, trace_at, #ARGV)
  end
end
