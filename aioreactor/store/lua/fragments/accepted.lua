-- Answers a write: how many requests there are, and what an index needs to know if the status moved; needs what
-- the fence needs and left, requests and status.
local asked = redis.call('HLEN', requests)
if status ~= '' and (repeated or status ~= before[4]) then
  local listing = redis.call('HMGET', run, 'created_ms', 'labels')
  return { 'MOVED', ver + 1, asked, tonumber(listing[1]), listing[2] }
end
return { 'OK', ver + 1, asked }
