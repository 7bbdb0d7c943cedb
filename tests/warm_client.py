"""A replacement of `python` and `rocstar`: a fork of the warm process runs the command; this ends as it ends.

warm_python.py copies this file into the folder of its socket.
"""

import contextlib
import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
"""Signals without a handler; the client receives each as SIGRTMIN plus its number."""


def main(path: str, arguments: list[str]) -> int:
    order = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}
    text = json.dumps(order).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(text).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(text)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        for number in UNHANDLED:
            behind = signal.SIGRTMIN + number
            signal.signal(behind, lambda behind, _: server.sendall(bytes([behind - signal.SIGRTMIN])))
        code = server.recv(4)
    if not code:
        sys.exit("the warm process has ended")
    return int.from_bytes(code, "little", signed=True)


if __name__ == "__main__":
    folder, called = os.path.split(sys.argv[0])
    script = ["-P", os.path.join(os.path.dirname(sys.executable), "rocstar")] if called == "rocstar" else []
    ended = main(os.path.join(folder, "socket"), script + sys.argv[1:])
    if ended < 0:  # a signal ended the command, and ends the client too
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    sys.exit(ended)
