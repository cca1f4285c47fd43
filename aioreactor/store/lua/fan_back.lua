--[[
Begin to roll the elements of a fan-out back, unless this was begun before in the same rollback of its run.

Each undo of a run that had ended is a rollback of its own, with a number. Repeatable: the second time finds it.

keys: run, fan
args: path
returns: BACK over undone bad | GONE
]]
--- @include "fan"
local run, fan = KEYS[1], KEYS[2]
local path = ARGV[1]

if redis.call('HEXISTS', fan, fan_field(path, 'window')) == 0 then
  return { 'GONE' }
end
local round = redis.call('HGET', run, 'undos') or '0'
if fan_text(fan, path, 'back') ~= round then
  local given = fan_number(fan, path, 'given')
  redis.call('HSET', fan, fan_field(path, 'back'), round, fan_field(path, 'down_to'), given, fan_field(path, 'again'), '',
    fan_field(path, 'taken_back'), 0, fan_field(path, 'came_back'), 0, fan_field(path, 'undone'), 0,
    fan_field(path, 'bad'), '', fan_field(path, 'back_over'), given == 0 and '1' or '')
end
return { 'BACK', fan_text(fan, path, 'back_over'), fan_number(fan, path, 'undone'), fan_text(fan, path, 'bad') }
