-- Tokens in flight that are lent to many processes, by this server's clock.
--
-- A process says what it holds, what runs and waits there by workload, and gets room up to its part of the limit:
-- weighted max-min over workloads, then over the users of one workload wherever they are, in whole tickets.  What does
-- not divide goes round: each process is owed what it held less than its part, and the most is owed first.  Whoever
-- holds more than its part gives back as its holders end.  Σ held ≤ limit always, unless the limit shrinks.
--
-- A process that falls silent may use what it holds for ttl seconds more, for work that takes as long as work may take:
-- only after both does its room come back.
--
-- A process that `keeps` goes on in a loss with what it was lent.  To such processes the room that nobody asks for is
-- lent in equal parts, so that each has a part to go on with.
--
-- Books are in doubt if they are new, were written by another server (a replica that was promoted, a file that was read
-- again), are older than an answer that a process remembers, or were not asked for in ttl seconds (a server that stood
-- still, or that everybody had left for another).  Then a pause begins, under a new epoch.  Processes declare what they
-- were lent before.  Until the pause ends only the room that was declared is lent: the rest may be held by a process
-- that has not come back.  Room that was never lent to anybody is free again after the pause.
--
-- KEYS[1] the state.  ARGV[1] what is asked, in JSON.  Replies are arrays of text: "ok" or "stale", then the values.
local ask = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local tiny = 1e-9
local told, server = pcall(redis.call, 'INFO', 'server')
server = told and string.match(server, 'run_id:(%w+)') or ''  -- some users may not ask

local state
local packed = redis.call('GET', KEYS[1])
if packed then
  local sound, found = pcall(cmsgpack.unpack, packed)
  if not sound or type(found) ~= 'table' or found.kind ~= 'slots 1' then
    return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds something that is not a limit of fairlead')
  end
  state = found
else
  state = {kind = 'slots 1', epoch = clock[1] .. '.' .. clock[2], born = now, seen = now, nodes = {}, known = 0,
    server = server, quiet = now + (ask.fresh or 0)}
end
state.known = state.known or 0  -- books of an earlier version have neither
state.server = state.server or server

-- A clock set back takes everything with it, so that nothing lasts longer than it was meant to.
if now < state.seen then
  local back = state.seen - now
  state.quiet, state.born = state.quiet - back, state.born - back
  for _, node in pairs(state.nodes) do
    node.till = node.till - back
    node.heard = node.heard - back
  end
end
local elapsed, alive = math.max(0, now - state.seen), false
for _, node in pairs(state.nodes) do
  alive = alive or (not node.old and state.seen - node.heard <= ask.ttl)
end
state.seen = now

local mine = state.nodes[ask.node]
if mine and mine.seq >= ask.seq then
  return {'stale'}
end

-- Are the books in doubt?
local declared = mine and not mine.old
local elsewhere = ask.epoch ~= '' and ask.epoch ~= state.epoch
local doubted = server ~= state.server or (mine and mine.seq < (ask.answered or 0))
  or (alive and elapsed > ask.ttl)
if elsewhere and declared then
  doubted = doubted or (mine.told and mine.told ~= ask.epoch)  -- it has been at other books since
elseif elsewhere and now >= state.quiet then
  doubted = doubted or not mine
end
if doubted then
  state.epoch, state.server, state.born, state.known = clock[1] .. '.' .. clock[2], server, now, 0
  elsewhere, declared = ask.epoch ~= '', false
  for _, node in pairs(state.nodes) do
    node.old = true
    node.till, node.heard = node.till + elapsed, node.heard + elapsed
  end
end
if doubted or (elsewhere and not declared) then
  state.quiet = math.max(state.quiet, state.born + ask.settle)
end

-- What this process holds: all that it declares, as far as no other process holds it; in any case what it uses.
local others, known_held = 0, 0
for id, node in pairs(state.nodes) do
  if id ~= ask.node and node.till > now then
    others = others + node.held
    if not node.old then known_held = known_held + node.held end
  end
end
local pausing = now < state.quiet
local used, held = ask.used or ask.held, ask.held
if declared then
  held = math.min(held, mine.held)
else
  held = math.min(held, ask.limit - (pausing and elsewhere and known_held or others))
end
held = math.max(used, held)
if elsewhere and not declared then state.known = state.known + held end
mine = {seq = ask.seq, till = now + ask.ttl + ask.longest, heard = now, held = held, ahead = ask.ahead,
  claims = {}, owed = mine and mine.owed or 0, rule = ask.rule, told = ask.epoch, keeps = ask.keeps}
for _, said in ipairs(ask.claims) do
  mine.claims[said[1]] = {weight = said[2], users = said[3], tokens = said[4], unit = said[5], largest = said[6]}
end
state.nodes[ask.node] = mine

-- Give each what it may have: items with demand and weight share a total.
local function share(items, total)
  local weights = 0
  for _, item in ipairs(items) do weights = weights + item.weight end
  table.sort(items, function(a, b) return a.demand / a.weight < b.demand / b.weight end)
  for _, item in ipairs(items) do
    item.got = math.max(0, math.min(item.demand, total * item.weight / weights))
    total = total - item.got
    weights = weights - item.weight
  end
  return total
end

local total, other = ask.limit, ''
local lines, heard = {}, {}
local tokens, tickets = 0, 0
for id, node in pairs(state.nodes) do
  if node.till <= now then
    state.nodes[id] = nil
  else
    if now - node.heard > ask.ttl then
      total = total - node.held  -- what it holds is not to be shared; what it asked for no longer counts
    else
      if node.rule and node.rule ~= ask.rule and (other == '' or id < other) then other = id end
      node.part = 0
      table.insert(heard, {id = id, node = node, asked = 0, largest = 0})
      local entry = heard[#heard]
      for label, claim in pairs(node.claims) do
        local line = lines[label] or {weight = 0, demand = 0, items = {}}
        lines[label] = line
        line.weight = math.max(line.weight, claim.weight, tiny)
        line.demand = line.demand + claim.tokens
        table.insert(line.items, {node = node, demand = claim.tokens, weight = math.max(1, claim.users)})
        tokens, tickets = tokens + claim.tokens, tickets + claim.tokens / math.max(claim.unit, tiny)
        entry.asked = entry.asked + claim.tokens
        entry.largest = math.max(entry.largest, claim.largest)
      end
    end
  end
end
total = math.max(0, total)

local classes = {}
for _, line in pairs(lines) do table.insert(classes, line) end
local left = share(classes, total)
for _, line in ipairs(classes) do
  share(line.items, line.got)
  for _, item in ipairs(line.items) do item.node.part = item.node.part + item.got end
end
if left > tiny then
  local items = {}
  for _, one in ipairs(heard) do
    if one.node.ahead > 0 then table.insert(items, {node = one.node, demand = one.node.ahead, weight = 1}) end
    one.asked = one.asked + one.node.ahead
  end
  share(items, left)
  for _, item in ipairs(items) do item.node.part = item.node.part + item.got end
end

-- In whole tickets; what is left over goes to whom most is owed.
local unit = tickets > 0 and tokens / tickets or 1
for _, one in ipairs(heard) do
  local bound = 2 * math.max(unit, one.largest)
  local owed = one.node.owed + (one.node.part - one.node.held) * elapsed / 0.1
  one.node.owed = math.max(-bound, math.min(bound, owed))
end
table.sort(heard, function(a, b)
  if a.node.owed ~= b.node.owed then return a.node.owed > b.node.owed end
  return a.id < b.id
end)
left = total
for _, one in ipairs(heard) do
  one.target = math.floor(one.node.part / unit + tiny) * unit
  if one.node.part >= one.asked - tiny then one.target = one.asked end
  if one.largest > one.target and one.node.owed >= 0 then one.target = math.min(one.largest, ask.limit) end
  if one.target > left + tiny then one.target = math.floor(left / unit + tiny) * unit end
  left = left - one.target
end
for _, one in ipairs(heard) do
  local more = math.min(math.ceil((one.asked - one.target) / unit) * unit, unit, left)
  if more > tiny and left >= unit - tiny then
    one.target = one.target + more
    left = left - more
  end
end
-- Room that nobody asks for, to the processes that keep it: those that have the least first, up to one level.
local keepers, level = {}, 0
for _, one in ipairs(heard) do
  if one.node.keeps then table.insert(keepers, one) end
end
table.sort(keepers, function(a, b)
  if a.target ~= b.target then return a.target < b.target end
  return a.id < b.id
end)
left = math.floor(left + tiny)
for place, one in ipairs(keepers) do
  local next_target = keepers[place + 1] and keepers[place + 1].target or math.huge
  level = level + one.target
  if left + level <= place * next_target then
    local each = math.floor((left + level) / place)
    local rest = math.floor(left + level - place * each + tiny)
    for n = 1, place do keepers[n].target = math.max(keepers[n].target, each + (n <= rest and 1 or 0)) end
    break
  end
end
local target = 0
for _, one in ipairs(heard) do
  if one.id == ask.node then target = one.target end
end

local free = ask.limit - others - mine.held
if pausing then free = math.min(free, state.known - known_held - mine.held) end
mine.held = mine.held + math.max(0, math.min(target - mine.held, free))
local function text(number) return string.format('%.17g', number) end
local reply = {'ok', text(mine.held), text(target), text(#heard), state.epoch,
  other, other ~= '' and state.nodes[other].rule or '', text(ask.seq), text(math.max(0, state.quiet - now))}
for _, node in pairs(state.nodes) do node.part = nil end
if mine.held <= 0 and #ask.claims == 0 and ask.ahead <= 0 and not ask.keeps then state.nodes[ask.node] = nil end

-- Kept for longer than anybody remembers them: only what was lost is missed.
local kept = ask.kept
for _, node in pairs(state.nodes) do kept = math.max(kept, node.till - now) end
kept = math.min(2592000, kept + 1)
redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', string.format('%d', math.ceil(kept * 1000)))
return reply
