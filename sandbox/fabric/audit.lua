-- KEYS: reply stream, then a stream per entry. ARGV: the entries' ids. Returns [newest id of the reply
-- stream, positions of the missing entries, from 1]. A missing entry was answered at or before that id, or
-- lost.
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
