-- Deals elements to a session: up to `wanted` of those that were given back, then new ones while the window has room.
-- Gives their indexes, those that were given back with an "a" behind them; how many more there are for others, and whether the source is to be read on.
local function fan_deal(fan, busy, path, token, wanted)
  local names = { 'given', 'settled', 'fed', 'window', 'doomed', 'again', 'end', 'low', 'back' }
  for i, name in ipairs(names) do
    names[i] = path .. '\n' .. name
  end
  local row = redis.call('HMGET', fan, unpack(names))
  local given, settled, fed, window = tonumber(row[1]), tonumber(row[2]), tonumber(row[3]), tonumber(row[4])
  local doomed, dealt, left = row[5] and row[5] ~= '', {}, {}
  if row[9] then
    return dealt, 0, false, false
  end
  for index in string.gmatch(row[6] or '', '%S+') do
    if #dealt < wanted then
      dealt[#dealt + 1] = index
    else
      left[#left + 1] = index
    end
  end
  if #dealt > 0 then
    redis.call('HSET', fan, path .. '\nagain', #left > 0 and table.concat(left, ' ') .. ' ' or '')
  end
  local again = #dealt
  local room = doomed and 0 or math.max(math.min(fed - given, window - (given - settled)), 0)
  local fresh = math.min(room, wanted - #dealt)
  for index = given, given + fresh - 1 do
    dealt[#dealt + 1] = tostring(index)
  end
  if fresh > 0 then
    given = given + fresh
    redis.call('HSET', fan, path .. '\ngiven', given)
  end
  for _, index in ipairs(dealt) do
    redis.call('HSET', busy, path .. '\n' .. index, token)
  end
  local is_low = not doomed and row[7] ~= '1' and fed - given < window and row[8] ~= '1'
  if is_low then
    redis.call('HSET', fan, path .. '\nlow', '1')
  end
  for i = 1, again do
    dealt[i] = dealt[i] .. 'a'
  end
  return dealt, room - fresh + #left, doomed, is_low
end

-- The chunks of items that these indexes lie in.
local function fan_items(fan, path, size, indexes)
  local asked, names = {}, {}
  for _, index in ipairs(indexes) do
    local chunk = math.floor(tonumber(string.match(index, '%d+')) / size)
    if not asked[chunk] then
      asked[chunk] = true
      names[#names + 1] = chunk
    end
  end
  local found = {}
  for _, chunk in ipairs(names) do
    found[#found + 1] = chunk
    found[#found + 1] = redis.call('HGET', fan, path .. '\ni:' .. chunk) or ''
  end
  return found
end
