"""Large bodies are decoded in other processes, for a call of the JSON parser takes a whole body at once, and
while it does nobody else in this process has a turn, in whatever thread it runs.

    Apart.call (in a thread) --function, arguments, body--> process: body --> its value, or a refusal
           ^                                                   |
           +-- made anew in small steps (parcel.py) <----------+

A process is started when all others are busy, and ends by itself when nothing came for `IDLE_S`. Its decoding
is the same function that a small body goes through, so the verdict is the same, whatever the bytes are. It
leads a session of its own and stands back: to the scheduler a session is one, and what its decoding took the
loop would wait for.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from rocstar.sandbox.loopback.parcel import Packed, pack, unpack
from rocstar.sandbox.types import SandboxError

T = TypeVar("T")

ANSWER_S = 60.0
"""No body takes so long."""

IDLE_S = 60.0
MESSAGE_BYTES = 1 << 16
TRIES = 2
"""A process may end for want of work in the moment in which it is given some; the next is a new one."""

KNOWN = "known"


class Ended(Exception):
    """The process is gone, or does not answer."""


class Apart:
    """The processes of a server. Invariant: each has one body at a time, and `close` leaves none."""

    def __init__(self, known: object, refusals: type[Exception]) -> None:
        """
        Args:
            known: a value that both sides have, so that it does not travel with each body.
            refusals: the error by which a function refuses a body; any other ends the process.
        """
        self._known, self._refusals = known, refusals
        self._lock = threading.Lock()
        self._idle: list[Decoder] = []
        self._all: set[Decoder] = set()
        self._closed = False

    def call(self, decode: Callable[[bytes], T], body: bytes) -> T:
        """What `decode` makes of the body, or raises of `refusals`. It is a function of a module, or a
        partial of one. Blocks. Raises SandboxError if no process gives an answer."""
        for tried in range(TRIES):
            with suppress(Ended, OSError):  # of files and memory that there are not, too
                outcome: T = self._unpacked(self._asked(decode, body, fresh=tried > 0))
                return outcome
        raise SandboxError("the process that reads large bodies has ended", kind="decoder", retryable=True)

    def _asked(self, decode: Callable[[bytes], Any], body: bytes, *, fresh: bool) -> Packed:
        decoder, lives = self._taken(fresh), False
        try:
            answer = decoder.ask(decode, body)
            lives = True
            return answer
        finally:
            if not lives:
                decoder.close()
            with self._lock:
                if lives and not self._closed:
                    self._idle.append(decoder)
                else:
                    self._all.discard(decoder)

    def _taken(self, fresh: bool) -> "Decoder":
        with self._lock:
            if self._closed:
                raise SandboxError("the service is closed", kind="closed", retryable=False)
            while self._idle and not fresh:
                decoder = self._idle.pop()
                if decoder.lives:
                    return decoder
                decoder.close()
                self._all.discard(decoder)
            try:
                decoder = Decoder(self._known, self._refusals)
            except OSError as error:
                raise Ended(f"it cannot be started: {error}") from None
            self._all.add(decoder)
            return decoder

    def _unpacked(self, answer: Packed) -> Any:
        """What came back, or raises it."""
        try:
            outcome = unpack(answer, {KNOWN: self._known})
        finally:
            os.close(answer.fd)
        if isinstance(outcome, self._refusals):
            raise outcome
        return outcome

    def close(self) -> None:
        """Also ends what is under way."""
        with self._lock:
            self._closed = True
            ended, self._all, self._idle = list(self._all), set(), []
        for decoder in ended:
            decoder.close()


class Decoder:
    """One process."""

    def __init__(self, known: object, refusals: type[Exception]) -> None:
        """Raises OSError."""
        self._known = {id(known): KNOWN}
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(ANSWER_S)
        with theirs, ExitStack() as undo:
            undo.callback(self._line.close)
            self._line.send(pickle.dumps((known, refusals)))  # it waits there
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rocstar.sandbox.loopback.apart_main", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Also: the interrupt of a terminal is the service's, which may still have bodies.
                start_new_session=True,
            )
            undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, decode: Callable[[bytes], Any], body: bytes) -> Packed:
        """Raises Ended."""
        question = pack((decode, body), self._known)
        try:
            send(self._line, question)
            return receive(self._line)
        except OSError as error:  # TimeoutError is one
            raise Ended(str(error)) from None
        finally:
            os.close(question.fd)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._line.close()


def send(line: socket.socket, parcel: Packed) -> None:
    numbers = pickle.dumps((parcel.text_bytes, parcel.total_bytes))
    socket.send_fds(line, [numbers], [parcel.fd])


def receive(line: socket.socket) -> Packed:
    """The receiver closes its file. Raises OSError, Ended when nobody is there any more."""
    numbers, fds, _, _ = socket.recv_fds(line, MESSAGE_BYTES, 1)
    if not numbers or not fds:
        raise Ended("it has ended")
    return Packed(fds[0], *pickle.loads(numbers))
