-- The statuses in which a run has ended.
local TERMINAL = { completed = true, failed = true, halted = true, cancelled = true, aborted = true }

-- Whether `status` is in a list written as ",one,other,".
local function listed(list, status)
  return string.find(list, ',' .. status .. ',', 1, true) ~= nil
end
