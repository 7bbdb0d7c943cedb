"""Two nodes on one machine: a torchrun for each, or two ranks without it; a Redis and a sandbox worker."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from .. import needs
from ..warm_python import WarmProcess, warm

DEADLINE_S = 300.0
START = "import sys; from rocstar.train.cli import main; sys.exit(main())"


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Start a Redis on a Unix socket; yield its URL."""
    needs.redis_server()
    # A socket's path has 107 bytes at most, which pytest's own folders exceed.
    with tempfile.TemporaryDirectory(prefix="rocstar-redis-") as folder:
        command = ["redis-server", "--port", "0", "--unixsocket", f"{folder}/s", "--dir", folder, "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                assert any("ready to accept connections" in line.lower() for line in server.stdout)
                yield f"unix://{folder}/s"
            finally:
                server.kill()


@contextlib.contextmanager
def worker(url: str, flavours: str) -> Iterator[list[str]]:
    """Start `rocstar sandbox worker` and wait for it; at the end its messages are in the yielded list."""
    messages: list[str] = []
    with subprocess.Popen(
        [str(warm().executable), "-c", START, "sandbox", "worker", "--flavours", flavours],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROCSTAR_REDIS_URL": url},
    ) as process:
        try:
            assert process.stderr is not None
            assert any("ready," in line for line in process.stderr)
            yield messages
            process.send_signal(signal.SIGTERM)
            messages.append(process.stderr.read())
        finally:
            process.kill()


def start_nodes(
    workshop: Any,
    *arguments: str,
    torchrun: bool = True,
    by_node: Sequence[dict[str, str]] = ({}, {}),
    by_launcher: Sequence[Sequence[str]] = ((), ()),
    **environment: str,
) -> list[subprocess.Popen[str]]:
    """Start one torchrun per node, each with one rank; or the two ranks with torchrun's environment.

    `by_node` extends the environment, `by_launcher` the options of torchrun.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started: list[subprocess.Popen[str]] = []
    python = str(warm().executable)
    for node in range(2):
        env = workshop.environment() | environment | by_node[node]
        launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}"]
        launcher += by_launcher[node]
        launcher += ["--master-addr=127.0.0.1", f"--master-port={port}", "--no-python", python]
        if not torchrun:
            launcher = []
            env |= {"RANK": str(node), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started.append(
            WarmProcess(
                [python, *launcher, "-m", "rocstar.train", *arguments],
                cwd=workshop.directory,
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                # A shell starts background jobs with SIGINT ignored, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        )
    return started


def ended(launchers: list[subprocess.Popen[str]], *, patient: bool = True) -> list[tuple[int, str]]:
    """Return exit codes and messages when all have ended; kill them if not patient."""
    try:
        messages = [launcher.communicate(timeout=DEADLINE_S if patient else 0)[1] for launcher in launchers]
        return [(launcher.returncode, text) for launcher, text in zip(launchers, messages, strict=True)]
    finally:
        for launcher in launchers:
            if launcher.returncode is None:  # else the number may belong to another process by now
                # Kill its ranks too: they hold its standard error open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(launcher.pid, signal.SIGKILL)
                launcher.communicate()
