"""What is decoded in another process has the verdict that it has here, and one that ends costs no answer."""

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstar.sandbox.http import decode_process
from rocstar.sandbox.http.decode_process import LONG_TEXT_CHARS, DecodePool, dump, load_pickle
from rocstar.sandbox.http.errors import RequestError, SchemaError
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions, decode_submission, decode_submissions
from rocstar.sandbox.service.dialects.native import (
    BatchCall,
    decode_batch,
    decode_cell,
    decode_run,
    decode_session,
)
from rocstar.sandbox.service.dialects.sandbox_fusion import decode_run_code, decode_run_jupyter
from rocstar.sandbox.service.dialects.verl_tool import decode_actions
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import ExecRequest, SandboxError

from .test_decode import BODIES, HOSTILE

RULES = ServiceLimits(flavours=("stdlib", "numeric"))
JUDGED = {"service_limits": RULES, "limits": JudgeOptions().limits, "owner": "somebody"}
DECODE: dict[str, Callable[[bytes], Any]] = {
    "run": partial(decode_run, service_limits=RULES, owner="somebody"),
    "batch": partial(decode_batch, service_limits=RULES, owner="somebody"),
    "session": partial(decode_session, service_limits=RULES),
    "cell": partial(decode_cell, service_limits=RULES),
    "submission": partial(decode_submission, **JUDGED),
    "submissions": partial(decode_submissions, **JUDGED),
    "run_code": partial(decode_run_code, service_limits=RULES),
    "run_jupyter": partial(decode_run_jupyter, service_limits=RULES),
    "actions": partial(decode_actions, service_limits=RULES, owner="somebody"),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[DecodePool]:
    made = DecodePool(RULES, RequestError)
    yield made
    made.close()


@pytest.fixture(scope="module")
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def shown(value: Any) -> Any:
    """An outcome as it can be compared, but for names of classes that are made for each service, and ids that
    are drawn."""
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
    decode = DECODE[name]
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
@given(name=st.sampled_from(sorted(DECODE)), body=BODIES)
def test_any_body_has_the_same_verdict(
    processes: DecodePool, thread: ThreadPoolExecutor, name: str, body: bytes
) -> None:
    check(processes, thread, name, body)


@settings(max_examples=40, deadline=None)
@given(body=BATCHES)
def test_a_batch_of_long_texts_has_the_same_verdict(
    processes: DecodePool, thread: ThreadPoolExecutor, body: bytes
) -> None:
    check(processes, thread, "batch", body)


@pytest.mark.parametrize("name", sorted(DECODE))
def test_a_hostile_body_has_the_same_verdict(
    processes: DecodePool, thread: ThreadPoolExecutor, name: str
) -> None:
    for body in HOSTILE.values():
        check(processes, thread, name, body)
    for depth in range(970, 1000, 3):
        check(processes, thread, name, b'{"code":"x","limits":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("run", {"code": "1", "files": {"a/b": "aGlp" * LONG_TEXT_CHARS}, "fetch_files": ["a"]}),
        ("cell", {"code": "1" * LONG_TEXT_CHARS, "wall_s": 1.5, "files": {"a": "aGk="}}),
        ("run_jupyter", {"cells": ["1", "2" * LONG_TEXT_CHARS], "total_timeout": 9, "files": {"a": "aGk="}}),
        ("actions", {"trajectory_ids": ["a"], "actions": ["<python>" + "1" * LONG_TEXT_CHARS + "</python>"]}),
        (
            "submissions",
            {"submissions": [{"type": "python", "solution": "1", "sub_id": "a"}]},
        ),
    ],
)
def test_what_is_right_comes_whole(
    processes: DecodePool, thread: ThreadPoolExecutor, name: str, body: dict[str, Any]
) -> None:
    check(processes, thread, name, json.dumps(body).encode())
    assert not isinstance(outcome(lambda: processes.call(DECODE[name], json.dumps(body).encode())), tuple)


def test_no_text_of_some_size_is_within_the_pickle() -> None:
    """Each is made by a call of its own, or the interpreter's lock would be kept for all of them."""
    files = {"a": b"x" * LONG_TEXT_CHARS}
    value = [ExecRequest(code=mark * LONG_TEXT_CHARS, files=files) for mark in "a\u6f22\ud800"]
    parcel = dump(value)
    try:
        assert parcel.total_bytes - parcel.text_bytes < LONG_TEXT_CHARS
        assert load_pickle(parcel) == value
    finally:
        os.close(parcel.fd)


def test_a_process_leads_a_session_of_its_own_and_stands_back() -> None:
    """In the service's, which is one to the scheduler, the loop would wait for what decoding took."""
    processes = DecodePool(RULES, RequestError)
    try:
        processes.call(DECODE["session"], b"{}")
        (one,) = processes._all
        assert os.getsid(one.pid) == one.pid != os.getsid(0)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, one.pid) == max(own, PROGRAMS_NICE)
    finally:
        processes.close()


def test_a_process_that_is_killed_at_its_work_costs_no_answer() -> None:
    processes = DecodePool(RULES, RequestError)
    body = json.dumps({"code": "x" * 9}).encode()
    try:
        assert processes.call(DECODE["run"], body).request.code == "x" * 9
        (first,) = processes._all
        os.kill(first.pid, signal.SIGSTOP)  # it takes the body and says nothing
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(processes.call, DECODE["run"], body)
            while processes._idle:
                os.sched_yield()
            os.kill(first.pid, signal.SIGKILL)
            assert asked.result().request.code == "x" * 9
        assert first not in processes._all and len(processes._all) == 1
    finally:
        processes.close()


def test_one_that_ended_for_want_of_work_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_process, "TRIES", 1)  # it is seen before
    processes = DecodePool(RULES, RequestError)
    try:
        processes.call(DECODE["session"], b"{}")
        (first,) = processes._all
        first._process.kill()
        first._process.wait()
        processes.call(DECODE["session"], b"{}")
        assert [one.pid for one in processes._all] != [first.pid] and len(processes._all) == 1
    finally:
        processes.close()


def test_two_that_end_for_want_of_work_together_cost_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do that were last asked together: each is still there when it is asked."""
    processes = DecodePool(RULES, RequestError)
    try:
        together = [processes._taken(fresh=True) for _ in range(2)]
        processes._idle += together
        for one in together:
            one._process.kill()
            one._process.wait()
        monkeypatch.setattr(decode_process.DecodeProcess, "lives", True)
        assert processes.call(DECODE["session"], b"{}").seed is None
    finally:
        monkeypatch.undo()
        processes.close()


def test_without_a_process_nothing_is_refused_that_may_be_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("/bin/false", "/no/such/python"):
        monkeypatch.setattr(decode_process.sys, "executable", program)
        processes = DecodePool(RULES, RequestError)
        with pytest.raises(SandboxError, match="has ended") as failure:
            processes.call(DECODE["session"], b"{}")
        assert failure.value.retryable and not processes._all
        processes.close()


def test_where_no_file_can_be_opened_it_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    processes = DecodePool(RULES, RequestError)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "memfd_create", none_left)
            with pytest.raises(SandboxError) as failure:
                processes.call(DECODE["session"], b"{}")
        assert failure.value.retryable and not processes._all
        assert processes.call(DECODE["session"], b"{}").seed is None
    finally:
        processes.close()


def test_the_interrupt_of_a_terminal_is_for_the_service_alone() -> None:
    """Which then answers what it has: bodies that are decoded among it."""
    processes = DecodePool(RULES, RequestError)
    try:
        processes.call(DECODE["session"], b"{}")
        (one,) = processes._all
        assert os.getpgid(one.pid) == one.pid
    finally:
        processes.close()


def test_closing_ends_the_processes_and_what_they_do() -> None:
    processes = DecodePool(RULES, RequestError)
    processes.call(DECODE["session"], b"{}")
    (one,) = processes._all
    os.kill(one.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(processes.call, DECODE["session"], b"{}")
        while processes._idle:
            os.sched_yield()
        processes.close()
        with pytest.raises(SandboxError, match="closed"):
            asked.result()
    assert not one.lives
    with pytest.raises(SandboxError, match="closed"):
        processes.call(DECODE["session"], b"{}")
