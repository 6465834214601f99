-- A token bucket that lends to many processes, by this server's clock.
--
-- Who waits anywhere is known here, by workload.  What there is goes to them by start-time fair queueing: workloads in
-- proportion to their weights, the processes of one workload in proportion to their users, whole tickets at a time.
-- What falls to a process that is not asking now is kept for it as mail, and comes back if it falls silent.  Only what
-- nobody waits for is lent ahead of need.  Σ lent ≤ capacity + fill·t always.
--
-- KEYS[1] the state.  ARGV[1] what is asked, in JSON.  Replies are arrays of text: "ok" or "stale", then the values.
local ask = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local rate = ask.fill / ask.interval
local idle = ask.idle > 0 and ask.idle or math.huge
local tiny = 1e-9

local state
local packed = redis.call('GET', KEYS[1])
if packed then
  local sound, found = pcall(cmsgpack.unpack, packed)
  if not sound or type(found) ~= 'table' or found.kind ~= 'quota 1' then
    return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds something that is not a quota of fairlead')
  end
  state = found
else
  state = {kind = 'quota 1', level = ask.capacity, at = now, seen = now, clock = 0, classes = {}, nodes = {}}
end
state.used = state.used or now  -- in new books, and in those of an earlier version

-- A clock set back takes everything with it, so that nothing lasts longer than it was meant to.
if now < state.seen then
  local back = state.seen - now
  state.at = state.at - back
  state.used = state.used - back
  for _, node in pairs(state.nodes) do node.till = node.till - back end
end
state.seen = now

local mine = state.nodes[ask.node]
if mine and mine.seq >= ask.seq then
  return {'stale'}
end

-- What was not used for so long counts as full, whoever waits for it meanwhile.
if now - state.used >= idle then
  state.level, state.at, state.used = ask.capacity, now, now
end

-- Fill.  Those known to wait would have used what came beyond the capacity since, so it is not lost to them.
local gained, edges = 0, 0
if ask.continuous then
  if now > state.at then
    gained = (now - state.at) * rate
    state.at = now
  end
else
  edges = math.max(0, math.floor((now - state.at) / ask.interval))
  gained = edges * math.min(ask.fill, ask.capacity)
  state.at = state.at + edges * ask.interval
end
local waited = 0
for id, node in pairs(state.nodes) do
  if node.till <= now then
    for _, tokens in pairs(node.mail) do state.level = state.level + tokens end
    state.nodes[id] = nil
  else
    for _, claim in pairs(node.claims) do waited = waited + claim.tokens end
  end
end
local beyond = ask.continuous and rate * 0.25 or math.max(0, edges - 1) * math.min(ask.fill, ask.capacity)
local most = ask.capacity + math.min(waited, beyond)
local level = math.min(most, state.level + gained + ask.back)
level = level - ask.debit
if ask.spent > 0 then level = math.max(math.min(level, 0), level - ask.spent) end
local was_full = level >= ask.capacity - tiny
local before = level

-- Who asks, and for what.  What is in its mail it does not know of yet.
local old = mine and mine.claims or {}
mine = {seq = ask.seq, till = now + ask.ttl, claims = {}, mail = mine and mine.mail or {}, rule = ask.rule}
state.nodes[ask.node] = mine
for _, said in ipairs(ask.claims) do
  local label, weight, users, tokens, unit = said[1], said[2], said[3], said[4], said[5]
  tokens = tokens - (mine.mail[label] or 0)
  if tokens > tiny then
    local tag = old[label] and old[label].tag or 0
    mine.claims[label] =
      {weight = weight, users = users, tokens = tokens, unit = math.min(unit, tokens), tag = tag}
  end
end

-- Share it out.
local lines, live, total, other = {}, 0, 0, ''
for id, node in pairs(state.nodes) do
  live = live + 1
  if node.rule and node.rule ~= ask.rule and (other == '' or id < other) then other = id end
  for label, claim in pairs(node.claims) do
    if claim.tokens > tiny then
      local class = state.classes[label] or {tag = 0, clock = 0}
      state.classes[label] = class
      class.tag = math.max(class.tag, state.clock)
      claim.tag = math.max(claim.tag, class.clock)
      local line = lines[label] or {label = label, class = class, weight = 0, claims = {}}
      lines[label] = line
      line.weight = math.max(line.weight, claim.weight)
      table.insert(line.claims, {id = id, node = node, claim = claim})
      total = total + claim.tokens
    end
  end
end
for label, class in pairs(state.classes) do
  if not lines[label] and class.tag <= state.clock then state.classes[label] = nil end
end
if not next(lines) then
  state.classes, state.clock = {}, 0
end

local function first()
  local best
  for _, line in pairs(lines) do
    -- A weight of 0 goes only when no other waits.
    local rank = line.weight > 0 and 0 or 1
    if not best or rank < best.rank or (rank == best.rank and (line.class.tag < best.class.tag or
        (line.class.tag == best.class.tag and line.label < best.label))) then
      best = line
      best.rank = rank
    end
  end
  if not best then return nil end
  local chosen
  for place, one in ipairs(best.claims) do
    if not chosen or one.claim.tag < best.claims[chosen].claim.tag or
        (one.claim.tag == best.claims[chosen].claim.tag and one.id < best.claims[chosen].id) then
      chosen = place
    end
  end
  return best, chosen
end

local portion = math.min(level, total) / 64
local line, place = first()
while line do
  local one = line.claims[place]
  local claim = one.claim
  local given = math.min(claim.tokens, math.max(claim.unit, math.ceil(portion / claim.unit) * claim.unit))
  if given > level + tiny then given = math.floor((level + tiny) / claim.unit) * claim.unit end
  if given <= tiny then break end  -- it has to save up, and nobody may take it away before
  state.clock = math.max(state.clock, line.class.tag)
  line.class.clock = math.max(line.class.clock, claim.tag)
  line.class.tag = line.class.tag + given / (line.weight > 0 and line.weight or 1)
  claim.tag = claim.tag + given / claim.users
  claim.tokens = claim.tokens - given
  one.node.mail[line.label] = (one.node.mail[line.label] or 0) + given
  level = level - given
  if claim.tokens <= tiny then
    table.remove(line.claims, place)
    if #line.claims == 0 then lines[line.label] = nil end
  end
  line, place = first()
end

-- Lend ahead only what nobody waits for, and the less the more share it.
local ahead = 0
if not line and ask.ahead > 0 and level > 0 then
  ahead = math.floor(math.min(ask.ahead, live == 1 and level or level / (2 * live)) + tiny)
  level = level - ahead
end
if level < before or ask.debit > 0 or ask.spent > 0 then state.used = now end
if ask.delay and was_full and level < before then
  if ask.continuous then
    state.at = now + ask.capacity / rate
  else
    state.at = now + (math.ceil(ask.capacity / ask.fill) - 1) * ask.interval
  end
end

-- When the first of those that wait could have enough.
local wait = -1
if line then
  local lacking = line.claims[place].claim.unit - level
  if ask.continuous then
    wait = math.max(0, state.at - now) + lacking / rate
  else
    wait = state.at + math.ceil(lacking / ask.fill) * ask.interval - now
  end
  wait = math.max(0, math.min(wait, state.used + idle - now))
end

local function text(number) return string.format('%.17g', number) end
local reply = {'ok', text(ahead), text(wait), text(level), text(live), text(math.max(0, state.at - now)),
  other, other ~= '' and state.nodes[other].rule or ''}
for label, tokens in pairs(mine.mail) do
  table.insert(reply, label)
  table.insert(reply, text(tokens))
end
mine.mail = {}

state.level = math.min(level, ask.capacity)
local full_in = math.max(0, state.at - now) + (ask.capacity - state.level) / rate + ask.interval
local kept = math.min(2592000, math.max(math.min(full_in, state.used + idle - now), ask.ttl) + 1)
redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', string.format('%d', math.ceil(kept * 1000)))
return reply
