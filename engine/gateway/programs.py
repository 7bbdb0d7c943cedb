"""A program as an agent: one process for each attempt, which reads its task from its environment.

    ROCSTAR_TASK (JSON) ──> program ──requests──> gateway        exit 0 ──> ROCSTAR_RESULT (JSON) ──> Given
                               └─ output: its end is kept         else ──> AgentFailure

The program has the rights of this user: it is trusted as the recipe is. Its whole process tree ends with the
attempt.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

from rocstar.engine.inference import guard
from rocstar.engine.rollout.rollout import AgentFailure
from rocstar.engine.types import Given, Task

MAX_OUTPUT_BYTES, MAX_LOG_BYTES = 64 << 10, 64 << 20
MAX_RESULT_BYTES = 1 << 20
STOP_S = 15.0
"""The time the guard has to end the tree; past it the guard and the tree are killed."""
PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH", "NODE_PATH", "SSL_CERT_FILE"),
)
"""The variables of our environment that a program gets; no other, so no secret of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClient:
    """Where an agent finds its model: the settings of an OpenAI or Anthropic client.

    Attributes:
        url: the root of the gateway, for Anthropic clients; OpenAI clients take `base_url`.
        api_key: names the attempt; secret.
        model: the name of the model.
    """

    url: str
    api_key: str
    model: str

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def environment(self) -> dict[str, str]:
        """The variables that OpenAI's and Anthropic's clients read."""
        return {
            **dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), self.base_url),
            "ANTHROPIC_BASE_URL": self.url,
            **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), self.api_key),
            **dict.fromkeys(("OPENAI_MODEL", "ANTHROPIC_MODEL"), self.model),
        }


async def run_program(command: Sequence[str], task: Task, client: AgentClient, log: Path | None) -> Given:
    """Run a program on a task, and return its result. AgentFailure if it fails; a cancellation ends it.

    log: the end of its output is appended there, if there is any.
    """
    folder = Path(tempfile.mkdtemp(prefix="rocstar-agent-"))
    output = bytearray()
    try:
        (folder / "work").mkdir()
        code = await _run(command, _environment(task, client, folder / "result.json"), folder / "work", output)
        if code != 0:
            ended = f"ended with {code}; its last output: {output[-2000:].decode(errors='replace')}"
            raise AgentFailure("agent_exit", f"{command[0]!r} {ended}")
        return _result(folder / "result.json")
    finally:
        if log is not None and output:
            await asyncio.to_thread(_append, log, f"--- {task.id}\n".encode() + output + b"\n")
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _run(command: Sequence[str], env: dict[str, str], cwd: Path, output: bytearray) -> int:
    """Run a command under its guard, append the end of its output, and return its exit status."""
    starting = asyncio.create_task(_start([sys.executable, "-I", guard.__file__, "--", *command], env, cwd))

    async def read_to_end(reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(MAX_OUTPUT_BYTES):  # until the guard ends, which is after all of the tree
            output.extend(piece)
            del output[:-MAX_OUTPUT_BYTES]

    try:
        _, reader = await asyncio.shield(starting)
        await read_to_end(reader)
    finally:
        process, reader = await starting
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await read_to_end(reader)
        except TimeoutError:  # the guard itself hangs
            below = guard.descendants(process.pid)
            process.kill()
            guard.signal_all(below, signal.SIGKILL)
        code = await asyncio.to_thread(process.wait)
    return code


async def _start(
    command: Sequence[str], env: dict[str, str], cwd: Path
) -> tuple[subprocess.Popen[bytes], asyncio.StreamReader]:
    """Start a process in a thread: create_subprocess_exec stops the loop of a process with a model for 0.1 s."""
    try:  # a task of more than 128 KiB fits into no variable
        process: subprocess.Popen[bytes] = await asyncio.to_thread(
            subprocess.Popen, command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=env, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        size = len(env["ROCSTAR_TASK"])
        raise AgentFailure("agent_exit", f"not started with a task of {size} characters: {error.strerror}") from None
    reader, loop = asyncio.StreamReader(limit=MAX_OUTPUT_BYTES), asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    return process, reader


def _environment(task: Task, client: AgentClient, result: Path) -> dict[str, str]:
    shown = {"id": task.id, "question": task.question, "context": [dict(message) for message in task.context]}
    return {
        **{name: os.environ[name] for name in PASSED if name in os.environ},
        **client.environment(),
        "ROCSTAR_TASK": json.dumps(shown),
        "ROCSTAR_RESULT": str(result),
    }


def _append(log: Path, text: bytes) -> None:
    """Append to the log; a log of MAX_LOG_BYTES takes no more."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        if file.tell() < MAX_LOG_BYTES:
            file.write(text)


def _result(path: Path) -> Given:
    """Read the result that a program wrote; it may write none."""
    if not path.is_file():
        return Given()
    with path.open("rb") as file:
        text = file.read(MAX_RESULT_BYTES + 1)
    if len(text) > MAX_RESULT_BYTES:
        raise AgentFailure("agent_result", f"ROCSTAR_RESULT has more than {MAX_RESULT_BYTES} bytes")
    try:
        return as_given(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise AgentFailure("agent_result", f"ROCSTAR_RESULT: {error}") from None


def as_given(value: object) -> Given:
    """Convert an agent's result: a text is an answer, a number a reward, an object has either. ValueError for
    another."""
    if isinstance(value, dict):
        if unknown := value.keys() - {"answer", "reward"}:
            raise ValueError(f"{sorted(map(str, unknown))} is unknown; give answer, reward or both")
        return Given(**value)
    if isinstance(value, str):
        return Given(answer=value)
    if value is None or isinstance(value, int | float):
        return Given(reward=value)
    raise ValueError(f"{value!r:.80} is no result; give a text, a number, None, or an object with answer and reward")
