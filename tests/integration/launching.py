"""Two nodes on one machine: a torchrun for each, or the two ranks as torchrun would start them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from ..warm_python import WarmProcess, warm

DEADLINE_S = 300.0


def start_nodes(
    workshop: Any,
    *arguments: str,
    torchrun: bool = True,
    by_node: Sequence[dict[str, str]] = ({}, {}),
    by_launcher: Sequence[Sequence[str]] = ((), ()),
    **environment: str,
) -> list[subprocess.Popen[str]]:
    """One torchrun per node, each with one rank; or the two ranks, as torchrun would start them.

    `by_node`: more of the environment; `by_launcher`: more of torchrun's options.
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
    """Exit codes and messages, when all have ended; without patience they are killed."""
    try:
        told = [launcher.communicate(timeout=DEADLINE_S if patient else 0)[1] for launcher in launchers]
        return [(launcher.returncode, text) for launcher, text in zip(launchers, told, strict=True)]
    finally:
        for launcher in launchers:
            if launcher.returncode is None:  # else its number is another's by now, and nobody is left of it
                # Its ranks, too: they hold its standard error open.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(launcher.pid, signal.SIGKILL)
                launcher.communicate()
