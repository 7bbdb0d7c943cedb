"""Stands for a Python: has a fork of a warm one run the command, and ends as it ends. See warm_python.py.

argv: the socket, then what a Python is given.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


def main(path: str, arguments: list[str]) -> int:
    order = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}
    text = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(text).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(text)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        code = server.recv(4)
    if not code:
        sys.exit("the warm process is gone")
    return int.from_bytes(code, "little", signed=True)


if __name__ == "__main__":
    ended = main(sys.argv[1], sys.argv[2:])
    if ended < 0:  # of a signal, and so does this one
        signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
