"""Processes that decode large request bodies.

    DecodePool.call (in a thread) --function, arguments, body--> process: body --> value, or an error
           ^                                                        |
           +-- unpickled in small steps: text | text | ... | pickle +

`pickle.loads` of 50 MB of text would hold the interpreter's lock for its whole duration. Here each long text
is created by itself, so other threads run in between. The reader trusts the writer, which runs the same code.

The JSON parser holds the interpreter's lock for a whole body, so a large body would block the event loop from
any thread. A process starts when all others are busy and exits after `IDLE_S` without work. It runs the same
function as for a small body, so the result is equal. It leads its own session and lowers its priority: the
scheduler shares the CPU by session, and decoding must not take the event loop's share.

`python -m rocstar.sandbox.http.decode_process FD` is such a process; FD is its socket.
"""

import io
import mmap
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from rocstar.sandbox._native import decode_text
from rocstar.sandbox.http.errors import RequestError
from rocstar.sandbox.pool.event_loop_priority import lower_priority
from rocstar.sandbox.types import SandboxError

T = TypeVar("T")
ANSWER_S = 60.0
"""No body takes so long."""

IDLE_S = 60.0
MESSAGE_BYTES = 1 << 16
TRIES = 2
"""A process may exit at its idle timeout when it gets a body; the second try starts a new one."""

SHARED = "known"
LONG_TEXT_CHARS = 1 << 12
"""A text of fewer stays within the pickle."""


@dataclass(frozen=True, slots=True)
class MemfdPickle:
    """A value in the file `fd`: texts in its first `text_bytes`, the pickle in the rest of `total_bytes`."""

    fd: int
    text_bytes: int
    total_bytes: int


class _Packer(pickle.Pickler):
    def __init__(self, head: io.BytesIO, texts: io.BufferedWriter, known: Mapping[int, str]) -> None:
        super().__init__(head, pickle.HIGHEST_PROTOCOL)
        self._texts = texts
        self._known = known
        self.text_bytes = 0

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if (kind is not str and kind is not bytes) or len(value) < LONG_TEXT_CHARS:
            return self._known.get(id(value))
        begin = self.text_bytes
        self.text_bytes += self._texts.write(value.encode("utf-8", "surrogatepass") if kind is str else value)
        return kind is str, begin, self.text_bytes


class _Unpacker(pickle.Unpickler):
    def __init__(self, head: io.BytesIO, texts: memoryview, known: Mapping[str, Any]) -> None:
        super().__init__(head)
        self._texts = texts
        self._known = known

    def persistent_load(self, name: Any) -> Any:
        if isinstance(name, str):
            return self._known[name]
        is_text, begin, end = name
        piece = self._texts[begin:end]
        return decode_text(piece) if is_text else bytes(piece)


def dump(value: Any, known: Mapping[int, str] = {}) -> MemfdPickle:
    """Pickle the value into a memory file, which the caller closes. `known`: names of objects that the reader
    has, by `id`."""
    fd = os.memfd_create("rocstar-parcel", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as texts:
            head = io.BytesIO()
            packer = _Packer(head, texts, known)
            packer.dump(value)
            texts.write(head.getbuffer())
        return MemfdPickle(fd, packer.text_bytes, packer.text_bytes + len(head.getbuffer()))
    except BaseException:
        os.close(fd)
        raise


def load_pickle(parcel: MemfdPickle, known: Mapping[str, Any] = {}) -> Any:
    """Return the value. `known`: the objects that the writer only named."""
    with (
        mmap.mmap(parcel.fd, parcel.total_bytes, prot=mmap.PROT_READ) as file,
        memoryview(file) as view,
        view[: parcel.text_bytes] as texts,
        view[parcel.text_bytes :] as head,
    ):
        return _Unpacker(io.BytesIO(head), texts, known).load()


class DecodePool:
    """The processes of a server. Invariant: each has one body at a time, and `close` leaves none."""

    def __init__(self, known: object) -> None:
        """known: a value that both sides have, so that it is not sent with each body."""
        self._known = known
        self._lock = threading.Lock()
        self._idle: list[DecodeProcess] = []
        self._all: set[DecodeProcess] = set()
        self._closed = False

    def call(self, decode: Callable[[bytes], T], body: bytes) -> T:
        """Return the result of `decode`, or raise its RequestError; another error ends the process. `decode`
        is a function of a module, or a partial of one. Blocks. Raises SandboxError if no process answers."""
        for tried in range(TRIES):
            with suppress(OSError):  # no answer, no process, no descriptor, no memory
                answer = self._ask_process(decode, body, fresh=tried > 0)
                try:
                    outcome: T = load_pickle(answer, {SHARED: self._known})
                finally:
                    os.close(answer.fd)
                if isinstance(outcome, RequestError):
                    raise outcome
                return outcome
        raise SandboxError("the process that reads large bodies has ended", kind="decoder", retryable=True)

    def _ask_process(self, decode: Callable[[bytes], Any], body: bytes, *, fresh: bool) -> MemfdPickle:
        decoder, has_answered = self._take_process(fresh), False
        try:
            answer = decoder.ask(decode, body)
            has_answered = True
            return answer
        finally:
            if not has_answered:
                decoder.close()
            with self._lock:
                if has_answered and not self._closed:
                    self._idle.append(decoder)
                else:
                    self._all.discard(decoder)

    def _take_process(self, fresh: bool) -> "DecodeProcess":
        with self._lock:
            if self._closed:
                raise SandboxError("the service is closed", kind="closed", retryable=False)
            while self._idle and not fresh:
                decoder = self._idle.pop()
                if decoder.lives:
                    return decoder
                decoder.close()
                self._all.discard(decoder)
            decoder = DecodeProcess(self._known)
            self._all.add(decoder)
            return decoder

    def close(self) -> None:
        """Kill all processes, also busy ones."""
        with self._lock:
            self._closed = True
            ended, self._all, self._idle = list(self._all), set(), []
        for decoder in ended:
            decoder.close()


class DecodeProcess:
    """One decoding process and its socket."""

    def __init__(self, known: object) -> None:
        """Raises OSError."""
        self._known = {id(known): SHARED}
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(ANSWER_S)
        with theirs, ExitStack() as undo:
            undo.callback(self._line.close)
            self._line.send(pickle.dumps(known))  # it waits there
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rocstar.sandbox.http.decode_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # The terminal's Ctrl-C is for the server, which may still have bodies to decode.
                start_new_session=True,
            )
            undo.pop_all()

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def ask(self, decode: Callable[[bytes], Any], body: bytes) -> MemfdPickle:
        """Raises OSError if the process exits or does not answer."""
        question = dump((decode, body), self._known)
        try:
            send_pickle(self._line, question)
            return receive_pickle(self._line)
        finally:
            os.close(question.fd)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._line.close()


def send_pickle(line: socket.socket, parcel: MemfdPickle) -> None:
    numbers = pickle.dumps((parcel.text_bytes, parcel.total_bytes))
    socket.send_fds(line, [numbers], [parcel.fd])


def receive_pickle(line: socket.socket) -> MemfdPickle:
    """Receive a pickle, whose file the caller closes. Raises OSError, also at the end of the connection."""
    numbers, fds, _, _ = socket.recv_fds(line, MESSAGE_BYTES, 1)
    if not numbers or not fds:
        raise ConnectionError("it has ended")
    return MemfdPickle(fds[0], *pickle.loads(numbers))


MAX_KNOWN_BYTES = 1 << 16


def main() -> None:
    """Decode bodies until the server has exited, or `IDLE_S` passes without work. Another error than a
    RequestError is a bug and ends the process. Decoding runs in a thread, because the nesting depth that the
    parser accepts depends on the depth of the stack, and smaller bodies are decoded in a thread too."""
    line = socket.socket(fileno=int(sys.argv[1]))
    known = pickle.loads(line.recv(MAX_KNOWN_BYTES))
    line.settimeout(IDLE_S)
    has_low_priority = False
    with ThreadPoolExecutor(1) as thread:
        while True:
            has_low_priority = has_low_priority or lower_priority()
            try:
                question = receive_pickle(line)
                decode, body = load_pickle(question, {SHARED: known})
                os.close(question.fd)
                try:
                    answer = dump(thread.submit(decode, body).result())
                except RequestError as error:
                    answer = dump(error)
                send_pickle(line, answer)
            except OSError:  # nothing came, or the service is gone
                return
            os.close(answer.fd)


if __name__ == "__main__":
    main()
