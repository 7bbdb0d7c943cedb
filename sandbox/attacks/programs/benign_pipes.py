# group: benign
# tries: nothing bad: pipes, pairs of sockets and selectors within one process
# expect: ok
# output: ^b'pipe' b'pair'$
import os
import selectors
import socket

read_end, write_end = os.pipe()
os.write(write_end, b"pipe")
left, right = socket.socketpair()
left.send(b"pair")
with selectors.DefaultSelector() as selector:
    selector.register(right, selectors.EVENT_READ)
    selector.select(1)
print(os.read(read_end, 10), right.recv(10))
