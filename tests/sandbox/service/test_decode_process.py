"""Decoding processes: the results and errors of the service itself, and the loss of a process."""

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http import decode_process
from rocstar.sandbox.http.decode_process import LONG_TEXT_CHARS, DecodePool, dump, load_pickle
from rocstar.sandbox.http.errors import RequestError, SchemaError
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE
from rocstar.sandbox.service.dialects.native import BatchCall
from rocstar.sandbox.types import ExecRequest, SandboxError

from .test_decode import BODIES, DECODERS, HOSTILE, RULES

SESSION = DECODERS["/v1/sessions"]


@contextmanager
def opened() -> Iterator[DecodePool]:
    made = DecodePool(RULES)
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[DecodePool]:
    """A pool without processes."""
    with opened() as made:
        yield made


@pytest.fixture(scope="module")
def processes() -> Iterator[DecodePool]:
    with opened() as made:
        yield made


@pytest.fixture(scope="module")
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def shown(value: Any) -> Any:
    """Return an outcome for a comparison, without the names of derived classes and random ids."""
    if isinstance(value, RequestError):
        details = value.answer if isinstance(value, SchemaError) else b""
        return type(value).__name__, str(value), value.field, value.status, value.kind, details
    if isinstance(value, BatchCall):
        return [shown(one) for one in value.requests], value.deadline_s, value.stream
    text = repr(value).replace("CellBody(", "Cell(").replace("NotebookBody(", "Notebook(")
    return text if "sub_id" not in text else [text.count("ExecRequest("), len(text)]


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return shown(act())
    except RequestError as error:
        return shown(error)


def check(processes: DecodePool, thread: ThreadPoolExecutor, name: str, body: bytes) -> None:
    decode = DECODERS[name]
    here = outcome(lambda: thread.submit(decode, body).result())
    assert outcome(lambda: processes.call(decode, body)) == here


LONG = st.sampled_from(["a", "\u00e9", "\u6f22", "\U0001f600", "\0", "\ud800", "\\", '"', "[", "{"]).map(
    lambda text: text * LONG_TEXT_CHARS
)
ITEMS = st.fixed_dictionaries(
    {"code": LONG | st.text(max_size=9)}, optional={"stdin": LONG | st.text(max_size=9), "x": st.none()}
)
BATCHES = st.builds(
    lambda items, ascii_only, more: (
        json.dumps({"requests": items}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + more
    ),
    st.lists(ITEMS, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([b"", b"", b"x", b"\xff", b"]", b" "]),
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(DECODERS)), body=BODIES)
def test_any_body_has_the_same_verdict(
    processes: DecodePool, thread: ThreadPoolExecutor, name: str, body: bytes
) -> None:
    check(processes, thread, name, body)


@settings(max_examples=40, deadline=None)
@given(body=BATCHES)
def test_a_batch_of_long_texts_has_the_same_verdict(
    processes: DecodePool, thread: ThreadPoolExecutor, body: bytes
) -> None:
    check(processes, thread, "/v1/batch", body)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_a_hostile_body_has_the_same_verdict(processes: DecodePool, thread: ThreadPoolExecutor, name: str) -> None:
    for body in HOSTILE.values():
        check(processes, thread, name, body)
    for depth in range(970, 1000, 3):
        check(processes, thread, name, b'{"code":"x","limits":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("/v1/run", {"code": "1", "files": {"a/b": "aGlp" * LONG_TEXT_CHARS}, "fetch_files": ["a"]}),
        ("/v1/sessions/x/run", {"code": "1" * LONG_TEXT_CHARS, "wall_s": 1.5, "files": {"a": "aGk="}}),
        ("/run_jupyter", {"cells": ["1", "2" * LONG_TEXT_CHARS], "files": {"a": "aGk="}}),
        ("/run/batch", {"submissions": [{"type": "python", "solution": "1", "sub_id": "a"}]}),
    ],
)
def test_what_is_right_comes_whole(
    processes: DecodePool, thread: ThreadPoolExecutor, name: str, body: dict[str, Any]
) -> None:
    check(processes, thread, name, json.dumps(body).encode())
    assert not isinstance(outcome(lambda: processes.call(DECODERS[name], json.dumps(body).encode())), tuple)


def test_no_text_of_some_size_is_within_the_pickle() -> None:
    """Each long text is created by its own call, which holds the interpreter's lock for that text alone."""
    files = {"a": b"x" * LONG_TEXT_CHARS}
    value = [ExecRequest(code=mark * LONG_TEXT_CHARS, files=files) for mark in "a\u6f22\ud800"]
    parcel = dump(value)
    try:
        assert parcel.total_bytes - parcel.text_bytes < LONG_TEXT_CHARS
        assert load_pickle(parcel) == value
    finally:
        os.close(parcel.fd)


def test_a_process_leads_a_session_of_its_own_and_stands_back(fresh: DecodePool) -> None:
    """The scheduler shares the CPU by session, and a terminal's Ctrl-C is for the service alone."""
    fresh.call(SESSION, b"{}")
    (one,) = fresh._all
    assert os.getsid(one.process.pid) == os.getpgid(one.process.pid) == one.process.pid != os.getsid(0)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, one.process.pid) == max(own, PROGRAMS_NICE)


@pytest.mark.parametrize("closes", [False, True])
def test_a_process_that_ends_at_its_work_costs_no_answer_unless_the_pool_closes(
    fresh: DecodePool, closes: bool
) -> None:
    assert fresh.call(SESSION, b"{}") == SESSION(b"{}")
    (first,) = fresh._all
    os.kill(first.process.pid, signal.SIGSTOP)  # it receives the body and does not answer
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(fresh.call, SESSION, b"{}")
        while fresh._idle:
            os.sched_yield()
        if closes:
            fresh.close()
            with pytest.raises(SandboxError, match="closed"):
                asked.result()
            with pytest.raises(SandboxError, match="closed"):
                fresh.call(SESSION, b"{}")
        else:
            os.kill(first.process.pid, signal.SIGKILL)
            assert asked.result() == SESSION(b"{}")
            assert first not in fresh._all and len(fresh._all) == 1
    assert not first.lives


@pytest.mark.parametrize("seen", [True, False])
def test_two_that_end_for_want_of_work_together_cost_no_answer(
    fresh: DecodePool, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Also when each still lives when it is asked."""
    fresh._idle += (decode_process.DecodeProcess(RULES) for _ in range(2))
    fresh._all |= set(fresh._idle)
    for one in fresh._idle:
        one.process.kill()
        one.process.wait()
    with monkeypatch.context() as patch:
        if seen:
            patch.setattr(decode_process, "TRIES", 1)
        else:
            patch.setattr(decode_process.DecodeProcess, "lives", True)
        assert fresh.call(SESSION, b"{}") == SESSION(b"{}")
    assert len(fresh._all) == (1 if seen else 2)


@pytest.mark.parametrize("lacking", ["/bin/false", "/no/such/python", "descriptors"])
def test_without_a_process_a_body_can_be_sent_again(
    fresh: DecodePool, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def none_left(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        if lacking == "descriptors":
            patch.setattr(os, "memfd_create", none_left)
        else:
            patch.setattr(decode_process.sys, "executable", lacking)
        with pytest.raises(SandboxError, match="has ended") as failure:
            fresh.call(SESSION, b"{}")
    assert failure.value.retryable and not fresh._all
    assert fresh.call(SESSION, b"{}") == SESSION(b"{}")
