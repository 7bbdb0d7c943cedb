# group: network
# tries: the datagrams that bash sends by itself, and its name look-ups
# breach: the host's server hears of it
# expect: ok
# output: HELD: refused
# held-by: seccomp, namespaces
# stdin: facts
read -r facts
port=$(sed 's/.*"udp_port": \([0-9]*\).*/\1/' <<<"$facts")
(echo word >"/dev/udp/127.0.0.1/$port") 2>/dev/null && echo "BREACH: port $port"
(exec 9<>/dev/tcp/localhost/"$port") 2>/dev/null && echo "BREACH: by name"
echo "HELD: refused"
