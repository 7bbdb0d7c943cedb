"""Lua that Redis runs as one step, where two commands would leave a gap."""

ENQUEUE = """
local max, ids = tonumber(ARGV[1]), {}
for i = 3, #ARGV, 2 do
    if max >= 0 and redis.call('XLEN', KEYS[1]) >= max then break end
    local fields = {'client', ARGV[2], 'calls', ARGV[i], 'pieces', ARGV[i + 1]}
    ids[#ids + 1] = redis.call('XADD', KEYS[1], '*', unpack(fields))
end
redis.call('EXPIRE', KEYS[1], 86400)
return ids
"""
"""KEYS: stream. ARGV: longest length of the stream or -1, client, and of each entry its message and the name
of its pieces, or nothing. The ids of those that had room."""

AUDIT = """
local last, missing = '0-0', {}
local info = redis.pcall('XINFO', 'STREAM', KEYS[1])
if not info.err then
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then last = info[i + 1] end
    end
end
for i = 1, #ARGV do
    if #redis.call('XRANGE', KEYS[i + 1], ARGV[i], ARGV[i]) == 0 then missing[#missing + 1] = i end
end
return {last, missing}
"""
"""KEYS: reply stream, then a stream per entry. ARGV: the entries' ids. [newest id of the reply stream, which
of the entries are gone, from 1]. An entry that is gone was answered at or before that id, or lost."""

STEP = """
local at = 1
while at <= #ARGV do
    local last = at + ARGV[at]
    local answer = redis.pcall(unpack(ARGV, at + 1, last))
    if type(answer) == 'table' and answer.err and not string.find(answer.err, '^WRONGTYPE') then
        return answer
    end
    at = last + 1
end
"""
"""ARGV: commands, each with the number of its parts before it. One that frees memory may come first: a Redis
that has no memory left lets those behind it in the same script go on. A key that somebody has made something
else of harms who reads it, and holds up nobody else's answers."""

FORGET_CONSUMER = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""KEYS: stream. ARGV: group, consumer. Deleting one would drop its pending entries: only without any."""
