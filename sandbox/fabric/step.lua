-- ARGV: commands, each preceded by the number of its parts. A command that frees memory may come first: Redis
-- without free memory then runs the rest of the script. A key of the wrong type fails only its own command.
local at = 1
while at <= #ARGV do
    local last = at + ARGV[at]
    local answer = redis.pcall(unpack(ARGV, at + 1, last))
    if type(answer) == 'table' and answer.err and not string.find(answer.err, '^WRONGTYPE') then
        return answer
    end
    at = last + 1
end
