--- @include "clock"
--- @include "keep"
-- A line of positions. Needs line (positions in order), seats (of each "beat_ms poison_ms stage token channel label",
-- and the position by "t:" and its token), state (epoch, next, failed). All of them go when the last position goes.

local function seat_of(position)
  local row = redis.call('HGET', seats, position) or ''
  local beat, poison, stage, token, channel, label = string.match(row, '^(%d+) (%d+) (%a+) (%S+) (%S+) (.*)$')
  return { beat = tonumber(beat), poison = tonumber(poison), stage = stage, token = token, channel = channel,
    label = label }
end

local function put_seat(position, seat)
  redis.call('HSET', seats, position, string.format('%.0f %.0f %s %s %s %s',
    seat.beat, seat.poison, seat.stage, seat.token, seat.channel, seat.label))
  for _, key in ipairs({ line, seats, state }) do
    keep(key, 2 * seat.poison + MEMORY_MS)
  end
end

local function vacate(position)
  local token = seat_of(position).token
  redis.call('ZREM', line, position)
  redis.call('HDEL', seats, position, 't:' .. (token or ''))
  if redis.call('EXISTS', line) == 0 then
    redis.call('DEL', seats, state)
  end
end

-- The first position, after passing over those that gave no sign of life; false if there is none.
local function head_of_line(now)
  while true do
    local head = redis.call('ZRANGE', line, 0, 0)[1]
    local seat = head and seat_of(head)
    if not head or (seat.beat and seat.beat + seat.poison > now) then
      return head or false, seat
    end
    vacate(head)
  end
end

local function tell(seat)
  if seat.channel ~= '-' then
    redis.call('PUBLISH', seat.channel, seat.token .. ' 0')
  end
end

local function tell_first(now)
  local head, seat = head_of_line(now)
  if head then
    tell(seat)
  end
end
