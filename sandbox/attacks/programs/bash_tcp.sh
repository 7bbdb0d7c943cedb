# group: network
# tries: the connections that bash makes by itself, over TCP
# breach: the host's server is reached
# expect: ok
# output: HELD: refused
# held-by: seccomp, landlock, namespaces
# stdin: facts
read -r facts
port=$(sed 's/.*"tcp_port": \([0-9]*\).*/\1/' <<<"$facts")
(exec 9<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && echo "BREACH: port $port"
echo "HELD: refused"
