"""Lua scripts, which Redis runs atomically."""

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
"""KEYS: stream. ARGV: the maximum length of the stream or -1, client, and for each entry its message and the
name of its chunks or "". Returns the ids of the accepted entries."""

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
"""KEYS: reply stream, then a stream per entry. ARGV: the entries' ids. Returns [newest id of the reply
stream, positions of the missing entries, from 1]. A missing entry was answered at or before that id, or
lost."""

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
"""ARGV: commands, each preceded by the number of its parts. A command that frees memory may come first: Redis
without free memory then runs the rest of the script. A key of the wrong type fails only its own command."""

FORGET_CONSUMER = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""KEYS: stream. ARGV: group, consumer. Deletes the consumer unless it has pending entries, which would be
lost."""
