--[[
Give back what was spent under `token`, if that is remembered, in those windows that it still counts in; not if who has a
higher `fence` owns it now.

`algorithm` is f, g or s; `windows` as they were when it was spent; `logs` only for s.
Repeatable: it is given back once.

keys: rate, spent, logs...
args: token, fence, cost, algorithm, windows...
returns: RESTORED | FORGOTTEN
]]
local rate, spent = KEYS[1], KEYS[2]
local token, fence, cost, algorithm = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local at = tonumber(redis.call('ZSCORE', spent, token) or 0)
if at == 0 or at % 1 ~= fence % 1024 / 1024 then
  return { 'FORGOTTEN' }
end
redis.call('ZREM', spent, token)
for i = 5, #ARGV, 2 do
  local limit, length = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local field = algorithm .. ARGV[i + 1]
  local row = redis.call('HGET', rate, field) or ''
  if algorithm == 'f' then
    local index, count = string.match(row, '^(%d+) (%d+)')
    if index and tonumber(index) == math.floor(at / length) then
      redis.call('HSET', rate, field, string.format('%s %.0f %.0f', index, math.max(count - cost, 0), limit))
    end
  elseif algorithm == 'g' and row ~= '' then
    -- An arrival that is past by now counts as now when it is read.
    local arrival = tonumber(string.match(row, '^%d+')) - cost * math.floor(length * 1000 / limit)
    redis.call('HSET', rate, field, string.format('%.0f %.0f', math.max(arrival, 0), limit))
  end
end
for i = 3, #KEYS do
  for unit = 1, cost do
    redis.call('ZREM', KEYS[i], token .. '#' .. unit)
  end
end
return { 'RESTORED' }
