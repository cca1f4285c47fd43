-- Milliseconds since the epoch by the server's clock, a whole number.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
