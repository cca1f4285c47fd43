-- A fan-out's scalars are fields of `fan`, named by its path, a newline and a name. `busy` says who has an element:
-- a session's token, or "@" for one that is a run of its own. An element that is neither there nor in `again` nor
-- beyond `given` has settled.
local function fan_field(path, name)
  return path .. '\n' .. name
end

local function fan_number(fan, path, name)
  return tonumber(redis.call('HGET', fan, path .. '\n' .. name) or 0) or 0
end

local function fan_text(fan, path, name)
  return redis.call('HGET', fan, path .. '\n' .. name) or ''
end

-- Elements whose session's lease is past, or that were given back, wait in `again`.
local function fan_give_again(fan, path, indexes)
  if #indexes > 0 then
    local before = fan_text(fan, path, 'again')
    redis.call('HSET', fan, fan_field(path, 'again'), before .. table.concat(indexes, ' ') .. ' ')
  end
end

-- Elements of a session, or of all whose lease is past (no token).
local function fan_reclaim(fan, busy, path, token, now)
  local left, lost = {}, {}
  for each in string.gmatch(fan_text(fan, path, 'tokens'), '%S+') do
    local gone = each == token
    if token == '' then
      gone = fan_number(fan, path, 'lease:' .. each) <= now
    end
    if gone then
      lost[each] = true
      redis.call('HDEL', fan, fan_field(path, 'lease:' .. each))
    else
      left[#left + 1] = each
    end
  end
  if not next(lost) then
    return 0
  end
  redis.call('HSET', fan, fan_field(path, 'tokens'), table.concat(left, ' '))
  local found, all, prefix = {}, redis.call('HGETALL', busy), path .. '\n'
  for i = 1, #all, 2 do
    if lost[all[i + 1]] and string.sub(all[i], 1, #prefix) == prefix then
      found[#found + 1] = string.sub(all[i], #prefix + 1)
      redis.call('HDEL', busy, all[i])
    end
  end
  fan_give_again(fan, path, found)
  return #found
end

-- A session works under this token for as long.
local function fan_lease(fan, path, token, lease_ms)
  if redis.call('HSET', fan, fan_field(path, 'lease:' .. token), lease_ms) == 1 then
    local before = fan_text(fan, path, 'tokens')
    redis.call('HSET', fan, fan_field(path, 'tokens'), before == '' and token or before .. ' ' .. token)
  end
end

-- What comes after the end of its run goes when the run does.
local function fan_expire(run, fan, out, busy)
  local left_ms = redis.call('PTTL', run)
  if left_ms > 0 then
    for _, key in ipairs({ fan, out, busy }) do
      redis.call('PEXPIRE', key, left_ms)
    end
  end
end
