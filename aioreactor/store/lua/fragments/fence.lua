-- Ends a writer that may not write; needs run, token, ver, write. `repeated`: this very write was applied before, and
-- whoever has taken the run since, the answer stays what it was. A lease past its time is still the holder's for as
-- long as nobody else took it. In line, since every function costs each checkpoint a closure.
local before = redis.call('HMGET', run, 'token', 'ver', 'write', 'status', 'recoveries',
  'watched_ms')
local repeated = before[3] == write
if not repeated then
  if not before[2] then
    return { 'LOST', 'gone' }
  elseif before[1] ~= token then
    return { 'LOST', 'token' }
  elseif before[2] ~= ver then
    return { 'LOST', 'version' }
  end
end
