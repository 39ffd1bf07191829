"""What Redis is asked, as Lua: each runs alone in the server and by the server's clock.

A limit is one hash: `r` and `t` are the arrival times of its requests and tokens in microseconds
since the epoch, `c:<worker>` is how many requests a worker has in flight, and until when that
counts if the worker says no more. Redis computes in doubles, which hold microseconds exactly for
280 years; a unit of a limit costs whole microseconds there, rounded up.
"""

from __future__ import annotations

from typing import Final

TAKE_ARGUMENTS: Final = 6
"""Per limit: what a request costs and how far ahead requests may be, the same of tokens, most in
flight, in flight at this worker. -1 where nothing is limited."""

TAKE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local me, lease = 'c:' .. ARGV[1], tonumber(ARGV[2])
local limits, answer, is_short = {}, {1}, false
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * 6
  local l = {r = now, t = now, mine = 0, others = 0, gone = {}}
  l.r_cost, l.r_room = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  l.t_cost, l.t_room = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  l.most, l.own = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local fields = redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    local name, value = fields[f], fields[f + 1]
    if name == 'r' or name == 't' then
      l[name] = math.max(now, tonumber(value))
    else
      local count, ends = string.match(value, '^(%d+):(%d+)$')
      if name == me then
        l.mine = tonumber(count)
      elseif tonumber(ends) > now then
        l.others = l.others + count
      else
        l.gone[#l.gone + 1] = name
      end
    end
  end
  l.mine = math.max(l.mine, l.own)
  local r_wait, t_wait, is_full = 0, 0, 0
  if l.r_cost >= 0 then r_wait = math.max(l.r + l.r_cost - now - l.r_room, 0) end
  if l.t_cost >= 0 then t_wait = math.max(l.t + l.t_cost - now - l.t_room, 0) end
  if l.most >= 0 and l.mine + l.others >= l.most then is_full = 1 end
  if r_wait > 0 or t_wait > 0 or is_full > 0 then is_short = true end
  limits[i] = l
  answer[#answer + 1] = r_wait
  answer[#answer + 1] = t_wait
  answer[#answer + 1] = is_full
  answer[#answer + 1] = l.r - now
  answer[#answer + 1] = l.t - now
end
if is_short then
  answer[1] = 0
  return answer
end
for i, key in ipairs(KEYS) do
  local l, last = limits[i], 0
  if #l.gone > 0 then redis.call('HDEL', key, unpack(l.gone)) end
  if l.r_cost >= 0 then
    l.r = l.r + l.r_cost
    redis.call('HSET', key, 'r', string.format('%.0f', l.r))
  end
  if l.t_cost >= 0 then
    l.t = l.t + l.t_cost
    redis.call('HSET', key, 't', string.format('%.0f', l.t))
  end
  if l.most >= 0 then
    last = now + lease
    redis.call('HSET', key, me, string.format('%d:%.0f', l.mine + 1, last))
  end
  last = math.max(last, l.r, l.t)
  local ttl = math.ceil((last - now) / 1000) + 1000
  if ttl > redis.call('PTTL', key) then redis.call('PEXPIRE', key, ttl) end
  answer[i * 5] = l.r - now
  answer[i * 5 + 1] = l.t - now
end
return answer
"""

GIVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key, me, lease = KEYS[1], 'c:' .. ARGV[1], tonumber(ARGV[2])
local requests, tokens, count = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local last = now
local function move(name, by)
  local known = tonumber(redis.call('HGET', key, name) or now)
  if by > 0 then
    known = math.max(known, now) + by
  else
    known = math.max(known + by, math.min(known, now))
  end
  redis.call('HSET', key, name, string.format('%.0f', known))
  last = math.max(last, known)
end
if requests ~= 0 then move('r', requests) end
if tokens ~= 0 then move('t', tokens) end
if count ~= 'same' then
  if count == 'less' then
    local known = string.match(redis.call('HGET', key, me) or '0:', '^(%d+):')
    count = tonumber(known) - 1
  else
    count = tonumber(count)
  end
  if count > 0 then
    last = math.max(last, now + lease)
    redis.call('HSET', key, me, string.format('%d:%.0f', count, now + lease))
  else
    redis.call('HDEL', key, me)
  end
end
local ttl = math.ceil((last - now) / 1000) + 1000
if ttl > redis.call('PTTL', key) then redis.call('PEXPIRE', key, ttl) end
return 0
"""

BEAT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return redis.call('ZCARD', KEYS[1])
"""
