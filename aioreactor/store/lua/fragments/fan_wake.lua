-- Has the run of a fan-out look at it: at once if it was let go, else when it is about to be. Gives the queue of the
-- workers that are to be told; nil when nobody is.
local function fan_wake(run, channel, path)
  local row = redis.call('HMGET', run, 'status', 'token', 'queue')
  if not row[1] or TERMINAL[row[1]] then
    return nil
  end
  redis.call('PUBLISH', channel, path)
  if row[2] ~= '' then
    redis.call('HSET', run, 'woken', 1)
    return nil
  end
  redis.call('HSET', run, 'due_ms', 0)
  return row[3] or ''
end

-- Whether nothing of a fan-out is under way and nothing more will be.
local function fan_is_over(fan, path, given, settled)
  if settled < given then
    return false
  end
  local row = redis.call('HMGET', fan, path .. '\ndoomed', path .. '\nend', path .. '\nfed')
  return (row[1] and row[1] ~= '') or (row[2] == '1' and tonumber(row[3]) == given)
end
