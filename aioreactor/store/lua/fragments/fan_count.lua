local FAN_KINDS = { s = 'ok', k = 'skipped', f = 'failed', h = 'halted', x = 'cut_off' }

-- What one element came to.
local function fan_note(fan, out, path, index, kind, record, counts)
  local lower = string.lower(kind)
  -- One that was cut off failed, unless that is because its map had been stopped.
  if lower == 'x' and (redis.call('HGET', fan, path .. '\ndoomed') or '') == '' then
    kind = kind == 'X' and 'F' or 'f'
    lower = 'f'
  end
  local name = FAN_KINDS[lower]
  counts.settled = counts.settled + 1
  counts[name] = (counts[name] or 0) + 1
  if lower ~= 's' or kind ~= lower or record ~= '' then
    redis.call('HSET', out, path .. '\n' .. index, kind .. record)
  end
  if kind == 'F' or kind == 'X' then
    local before = redis.call('HGET', fan, path .. '\nowed') or ''
    redis.call('HSET', fan, path .. '\nowed', before .. index .. ' ')
  end
  if lower == 'h' then
    redis.call('HSETNX', fan, path .. '\nhalt', index)
    redis.call('HSETNX', fan, path .. '\ndoomed', 'halted')
  elseif lower == 'f' and redis.call('HGET', fan, path .. '\natomic') == '1' then
    redis.call('HSETNX', fan, path .. '\ndoomed', 'failed')
    local before = redis.call('HGET', fan, path .. '\nfailures') or ''
    redis.call('HSET', fan, path .. '\nfailures', before .. index .. ' ')
  end
end

local function fan_add(fan, path, counts)
  for name, count in pairs(counts) do
    if count > 0 then
      redis.call('HINCRBY', fan, path .. '\n' .. name, count)
    end
  end
end

local function fan_forget_chunk(fan, path, chunk)
  redis.call('HDEL', fan, path .. '\ni:' .. chunk, path .. '\nn:' .. chunk)
end

-- A chunk of items goes when all its elements have settled.
local function fan_forget_item(fan, path, size, index)
  local chunk = math.floor(tonumber(index) / size)
  if redis.call('HINCRBY', fan, path .. '\nn:' .. chunk, 1) >= size then
    fan_forget_chunk(fan, path, chunk)
  end
end
