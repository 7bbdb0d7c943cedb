-- KEYS: stream. ARGV: the maximum length of the stream or -1, client, and for each entry its message and the
-- name of its chunks or "". Returns the ids of the accepted entries.
local max, ids = tonumber(ARGV[1]), {}
for i = 3, #ARGV, 2 do
    if max >= 0 and redis.call('XLEN', KEYS[1]) >= max then break end
    local fields = {'client', ARGV[2], 'calls', ARGV[i], 'pieces', ARGV[i + 1]}
    ids[#ids + 1] = redis.call('XADD', KEYS[1], '*', unpack(fields))
end
redis.call('EXPIRE', KEYS[1], 86400)
return ids
