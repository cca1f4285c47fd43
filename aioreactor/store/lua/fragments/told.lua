-- Tells who follows the trace, on the channel that has the trace's name; needs what the fence needs and left, and now.
if before[6] and tonumber(before[6]) > now then
  redis.call('PUBLISH', trace, ver + 1)
end
