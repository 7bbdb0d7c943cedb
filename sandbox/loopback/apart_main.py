"""The process in which large bodies are decoded; see apart.py. Its argument is the line to the service."""

import os
import pickle
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from rocstar.sandbox.loopback.apart import IDLE_S, KNOWN, Ended, receive, send
from rocstar.sandbox.loopback.parcel import Packed, pack, unpack
from rocstar.sandbox.pool.event_loop_priority import lower_priority

MAX_KNOWN_BYTES = 1 << 16


def main() -> None:
    """Answers until the service is gone, or asks for nothing any more. An error that is no refusal
    is a bug and ends the process."""
    line = socket.socket(fileno=int(sys.argv[1]))
    known, refusals = pickle.loads(line.recv(MAX_KNOWN_BYTES))
    line.settimeout(IDLE_S)
    stands_back = False
    with ThreadPoolExecutor(1) as thread:
        while True:
            stands_back = stands_back or lower_priority()
            try:
                answer = answered(receive(line), known, refusals, thread)
                send(line, answer)
            except (Ended, OSError):  # nothing came, or the service is gone
                return
            os.close(answer.fd)


def answered(
    question: Packed, known: object, refusals: type[Exception], thread: ThreadPoolExecutor
) -> Packed:
    """The outcome. Closes the file of the question. In a thread: how deep a body may be nested depends on how
    deep the stack is already, and the service reads what is less large in one."""
    decode, body = unpack(question, {KNOWN: known})
    os.close(question.fd)
    try:
        return pack(thread.submit(decode, body).result())
    except refusals as refusal:
        return pack(refusal)


if __name__ == "__main__":
    main()
