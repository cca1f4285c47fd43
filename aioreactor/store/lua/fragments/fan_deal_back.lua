local SKIPS = 2000

-- How many elements could be dealt now, or have to be looked at.
local function fan_more_back(fan, path)
  local _, again = string.gsub(fan_text(fan, path, 'again'), '%S+', '')
  local room = fan_number(fan, path, 'window') - fan_number(fan, path, 'taken_back') + fan_number(fan, path, 'came_back')
  return again + math.max(math.min(room, fan_number(fan, path, 'down_to')), 0)
end

-- Deals elements that are to be rolled back, the highest index first; those with nothing to roll back are passed by, at
-- most so many a call, since the server does nothing else meanwhile. What is owed of one that failed was tried when it
-- did: it is tried again only by an undo that somebody asks for.
local function fan_deal_back(fan, out, busy, path, token, wanted)
  local dealt, left = {}, {}
  for index in string.gmatch(fan_text(fan, path, 'again'), '%S+') do
    if #dealt < wanted then
      dealt[#dealt + 1] = index
    else
      left[#left + 1] = index
    end
  end
  redis.call('HSET', fan, fan_field(path, 'again'), #left > 0 and table.concat(left, ' ') .. ' ' or '')
  local down_to, taken = fan_number(fan, path, 'down_to'), fan_number(fan, path, 'taken_back')
  local room = fan_number(fan, path, 'window') - (taken - fan_number(fan, path, 'came_back'))
  local steps, before, first = 0, #dealt, fan_text(fan, path, 'back') == '0'
  while down_to > 0 and #dealt < wanted and #dealt - before < room and steps < SKIPS do
    down_to, steps = down_to - 1, steps + 1
    local kind = string.sub(redis.call('HGET', out, fan_field(path, down_to)) or '', 1, 1)
    if kind ~= string.lower(kind) and not (first and (kind == 'F' or kind == 'X')) then
      dealt[#dealt + 1] = tostring(down_to)
    end
  end
  redis.call('HSET', fan, fan_field(path, 'down_to'), down_to, fan_field(path, 'taken_back'), taken + #dealt - before)
  local records = {}
  for i, index in ipairs(dealt) do
    redis.call('HSET', busy, fan_field(path, index), token)
    records[i] = redis.call('HGET', out, fan_field(path, index)) or ''
  end
  return dealt, records, fan_more_back(fan, path)
end

local function fan_is_back(fan, path)
  return fan_number(fan, path, 'down_to') == 0 and
    fan_number(fan, path, 'taken_back') == fan_number(fan, path, 'came_back')
end
