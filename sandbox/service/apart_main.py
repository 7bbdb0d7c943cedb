"""The process in which large bodies are decoded; see apart.py. Its argument is the line to the service."""

import os
import pickle
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from rocstar.sandbox.pool.soon import stand_back
from rocstar.sandbox.service.apart import IDLE_S, RULES, Ended, receive, send
from rocstar.sandbox.service.errors import Refused
from rocstar.sandbox.service.parcel import Packed, pack, unpack
from rocstar.sandbox.service.rules import Rules

MAX_RULES_BYTES = 1 << 16


def main() -> None:
    """Answers until the service is gone, or asks for nothing any more. What is no Refused is a mistake of
    ours and ends the process."""
    line = socket.socket(fileno=int(sys.argv[1]))
    rules: Rules = pickle.loads(line.recv(MAX_RULES_BYTES))
    line.settimeout(IDLE_S)
    stands_back = False
    with ThreadPoolExecutor(1) as thread:
        while True:
            stands_back = stands_back or stand_back()
            try:
                answer = answered(receive(line), rules, thread)
                send(line, answer)
            except (Ended, OSError):  # nothing came, or the service is gone
                return
            os.close(answer.fd)


def answered(question: Packed, rules: Rules, thread: ThreadPoolExecutor) -> Packed:
    """The outcome. Closes the file of the question. In a thread: how deep a body may be nested depends on how
    deep the stack is already, and the service reads what is less large in one."""
    decode, body = unpack(question, {RULES: rules})
    os.close(question.fd)
    try:
        return pack(thread.submit(decode, body).result())
    except Refused as refusal:
        return pack(refusal)


if __name__ == "__main__":
    main()
