-- Which processes are alive, by this server's clock: how many, and which of them, in order of name, the caller is.
--
-- KEYS[1] a sorted set of names by the instant until which they count.  ARGV: name, seconds to count for; 0: not at all.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local lasting = tonumber(ARGV[2])
if lasting > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + lasting), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now))
-- Of a clock set back, what it said before does not count.
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('%.6f', now + 10 * lasting + 10), '+inf')
local names = redis.call('ZRANGE', KEYS[1], 0, -1)
local before = 0
for _, name in ipairs(names) do
  if name < ARGV[1] then before = before + 1 end
end
if #names > 0 then redis.call('PEXPIRE', KEYS[1], math.ceil(lasting * 1000) + 60000) end
return {'ok', tostring(#names), tostring(before)}
