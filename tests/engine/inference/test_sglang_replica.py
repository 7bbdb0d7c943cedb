"""A server as a supervised child: started, restarted with the present weights, never left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang import server as server_module
from rocstar.engine.inference.sglang.replica import Replica, server_command
from rocstar.engine.inference.sglang.server import ServerProcess
from rocstar.engine.inference.weights import DiskWeights, LiveWeights
from tests.fakes.asking import ask
from tests.fakes.sglang.fake_model import VOCAB

FAKE = "tests.fakes.sglang.fake_server"
TREE = """
import subprocess, sys, time
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(below.pid, flush=True)
time.sleep(600)
"""
"""A server with a child in a session of its own, as tokenizer and scheduler processes may be."""


def fake_command(model: Path) -> Callable[[int], list[str]]:
    return lambda port: [
        *(sys.executable, "-m", FAKE, "--model-path", str(model), "--port", str(port)),
        *("--step-s", "0.001"),
    ]


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def told(log: Path) -> list[int]:
    """The numbers that a program printed into its log so far."""
    text = log.read_text() if log.exists() else ""
    return [int(line) for line in text.splitlines() if line.isdigit()]


@pytest.mark.parametrize("guard_hangs", [False, True])
async def test_stop_ends_the_whole_tree(
    tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch, guard_hangs: bool
) -> None:
    if guard_hangs:
        monkeypatch.setattr(server_module, "STOP_S", 0.05)
    log = tmp_path / "logs" / "server.log"
    async with ServerProcess([sys.executable, "-c", TREE], log_path=log) as server:
        await until(lambda: told(log))
        (below,) = told(log)
        assert is_alive(below) and is_alive(server.pid)
        if guard_hangs:
            os.kill(server.pid, signal.SIGSTOP)
    assert guard_hangs or not (is_alive(below) or is_alive(server.pid))
    await until(lambda: not is_alive(below) and not is_alive(server.pid))


async def test_the_death_of_the_server_ends_its_children_and_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    code = TREE.replace("time.sleep(600)\n", "sys.exit(3)\n")
    async with ServerProcess([sys.executable, "-c", code], log_path=log) as server:
        assert await server.wait() == 3
        (below,) = told(log)
        assert not is_alive(below)

        async def never() -> bool:
            return False

        with pytest.raises(InferenceError, match="ended with 3") as caught:
            await server.wait_ready(never, deadline_s=60)
        assert str(below) in caught.value.detail, "the log's tail is in the message"


async def test_a_server_dies_with_a_killed_parent(tmp_path: Path, until: Any) -> None:
    """SIGKILL leaves no chance to clean up: the pipe's end tells the guard."""
    log = tmp_path / "server.log"
    parent_code = f"""
import asyncio, sys
from pathlib import Path
from rocstar.engine.inference.sglang.server import ServerProcess
async def main():
    server = ServerProcess([sys.executable, "-c", {TREE!r}], log_path=Path({str(log)!r}))
    await server.start()
    await asyncio.sleep(600)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_code)
    try:
        await until(lambda: told(log))
    finally:
        parent.kill()
        await parent.wait()
    (below,) = told(log)
    await until(lambda: not is_alive(below))


async def test_a_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with ServerProcess(["/no/such/python"], log_path=tmp_path / "log") as server:
        assert await server.wait() == 127
        assert "No such file" in server.tail()


def test_engine_args_go_through_verbatim() -> None:
    args = {
        "tp-size": 2,
        "mem_fraction_static": 0.8,
        "disable-overlap-schedule": True,
        "enable-metrics": False,
        "lora-paths": ["a", "b"],
    }
    command = server_command("py", Path("/m"), 7, args)
    assert command[:9] == [
        "py",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m",
        "--host",
        "127.0.0.1",
        "--port",
        "7",
    ]
    assert command[9:] == [
        *("--tp-size", "2", "--mem-fraction-static", "0.8"),
        *("--disable-overlap-schedule", "--lora-paths", "a", "b"),
    ]
    with pytest.raises(ValueError, match="leave it out"):
        server_command("py", Path("/m"), 7, {"port": 8})


@pytest.mark.slow
async def test_a_killed_server_comes_back_with_the_present_weights(
    checkpoints: dict[str, Path], tmp_path: Path, until: Any
) -> None:
    """Broadcast, kill, restart: one server, as starting one takes a second."""
    async with Replica(
        fake_command(checkpoints["a"]),
        model=DiskWeights(checkpoints["a"]),
        vocab_size=VOCAB,
        log_path=tmp_path / "logs" / "sglang-0.log",
        engine_options={"watch_every_s": 0.05, "broadcast": "gloo"},
    ) as replica:
        first = await ask(replica, [5, 6], "s0/t/0", 8)
        await replica.publish(1, DiskWeights(checkpoints["b"]))
        second = await ask(replica, [5, 6], "s0/t/1", 8)
        assert first.ids != second.ids and second.version_spans == ((0, 8, 1),)

        running = asyncio.create_task(ask(replica, [5, 6], "s0/t/2", 2000))
        await until(lambda: replica.load().running)
        kill_server(replica)
        with pytest.raises(InferenceError) as caught:
            await running
        assert (caught.value.kind, caught.value.retryable) == ("replica_lost", True)
        await until(lambda: not replica.ready)
        await replica.wait_ready(asyncio.get_running_loop().time() + 60)
        again = await ask(replica, [5, 6], "s0/t/2", 8)
        assert (again.ids, again.logprobs, again.version_spans) == (second.ids, second.logprobs, ((0, 8, 1),))
        assert replica.restarts == 1

        from safetensors.torch import load_file

        await replica.publish(2, LiveWeights(load_file(checkpoints["a"] / "model.safetensors")))
        third = await ask(replica, [5, 6], "s0/t/3", 8)
        assert (third.ids, third.version_spans) == (first.ids, ((0, 8, 2),))
        # As after a restart: a broadcast left nothing behind to load.
        replica.engine.break_off(InferenceError("suspended", "for the test", retryable=True))
        await replica.restore()
        with pytest.raises(InferenceError, match="waiting for the next publish"):
            await ask(replica, [5, 6], "s0/t/4", 8)
        await replica.publish(3, DiskWeights(checkpoints["b"]))
        assert (await ask(replica, [5, 6], "s0/t/4", 8)).version_spans == ((0, 8, 3),)
        assert await replica.restart() is replica and replica.restarts == 2
        assert (await ask(replica, [5, 6], "s0/t/5", 8)).version_spans == ((0, 8, 3),)
        guard = replica._server
        assert guard is not None
    assert not is_alive(guard.pid)


def kill_server(replica: Replica) -> None:
    """The server itself, not the guard above it."""
    guard = replica._server
    assert guard is not None
    children = Path(f"/proc/{guard.pid}/task/{guard.pid}/children").read_text().split()
    assert children
    os.kill(int(children[0]), signal.SIGKILL)


async def test_a_server_that_never_answers_is_given_up(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="not ready within") as caught:
        async with Replica(
            lambda port: [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"],
            model=DiskWeights(checkpoints["a"]),
            vocab_size=VOCAB,
            log_path=tmp_path / "log",
            ready_timeout_s=1.0,
        ):
            pass
    assert "loading" in caught.value.detail
