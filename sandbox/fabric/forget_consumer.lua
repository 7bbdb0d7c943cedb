-- KEYS: stream. ARGV: group, consumer. Deletes the consumer unless it has pending entries, which would be
-- lost.
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
