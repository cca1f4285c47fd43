-- A row of the index is "created_ms ver" and, one a line, the labels under which a run is listed. The list of a
-- label is a sorted set by time of creation, beside the rows: its key is theirs, with the label for "rows".
local function parse_row(row)
  local labels = {}
  for label in string.gmatch(row, '\n([^\n]+)') do
    labels[label] = true
  end
  local created_ms, ver = string.match(row, '^(%d+) (%d+)')
  return tonumber(created_ms), tonumber(ver), labels
end

local function list_key(rows, label)
  return string.sub(rows, 1, -5) .. label
end
