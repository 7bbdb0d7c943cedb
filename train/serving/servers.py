"""SGLang servers as the engine of a recipe: started on this node, behind a fleet.

    folder ─> Replica 0 .. N-1, children of this process ─> Fleet ─> rollouts

How weights get into them: train/publish.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocstar.engine.fleet.fleet import Fleet, FleetLimits
from rocstar.engine.inference.base import InferenceError
from rocstar.engine.inference.sglang.canary import Canary
from rocstar.engine.inference.sglang.replica import BroadcastToAll, Replica, server_command, sglang_python
from rocstar.engine.inference.sglang.server import Launcher, ServerProcess
from rocstar.engine.inference.weights import DiskWeights
from rocstar.engine.progress.progress import working
from rocstar.engine.scheduling.policies import make_policy
from rocstar.train.learner.model_io import vocabulary_size
from rocstar.train.publish.node_servers import UPDATE_TIMEOUT_S, NodeServers
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.serving.placement import server_env

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HANG_TIMEOUT_S = 300.0
"""Longest standstill of a scheduler in seconds, for a prefill or a compilation."""
NOT_THEIRS = re.compile(
    r"ROCSTAR_REDIS_URL|ROCSTAR_OPENAI_KEY|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|(GROUP|ROLE)_(RANK|WORLD_SIZE)|ROLE_NAME"
    r"|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|TORCHRUN_\w+"
)
"""Variables that a server does not get. The first may hold a password. The others are torchrun's: a server
that sees TORCHELASTIC_USE_AGENT_STORE waits for ever for torchrun's store, and makes no group of its own."""
CANARY_TEXT = "1 + 1 = 2, 2 + 2 = 4, 3 + 3 ="
CANARY_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Nats by which engines of one precision differ on the likeliest token, with room to spare."""
PARALLEL_ARGS = {"tp", "tp-size", "tensor-parallel-size", "dp", "dp-size", "data-parallel-size", "pp-size"}


def check_sglang() -> None:
    """The interpreter that starts servers must have SGLang."""
    python = sglang_python()
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([python, "-c", program], check=False, timeout=60.0, capture_output=True)
        missing = bool(found.returncode)
    except (OSError, subprocess.TimeoutExpired):
        missing = True
    if missing:
        raise ConfigError(
            f"engine.kind = 'sglang': {python!r} has no sglang; name an interpreter that has it in "
            "ROCSTAR_SGLANG_PYTHON, or run `make sglang-env` on a machine without a GPU"
        )


def make_canary(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Canary:
    """Return the canary of the recipe's servers, for servers without predictable checksums."""
    prompt: list[int] = tokenizer.encode(CANARY_TEXT, add_special_tokens=False)
    return Canary(prompt=prompt, tolerance=CANARY_TOLERANCE[recipe.model.dtype])


@dataclass(slots=True, kw_only=True, eq=False)
class Launch:
    """The command that starts a server, from the folder that servers are started from now."""

    recipe: Recipe
    folder: Path
    replica: int

    def __call__(self, port: int) -> list[str]:
        return server_command(sglang_python(), self.folder, port, server_args(self.recipe, self.replica))


def server_args(recipe: Recipe, replica: int) -> dict[str, Any]:
    """Return [engine.args] with defaults from the rest of the recipe."""
    given = {name.replace("_", "-") for name in recipe.engine.args}
    own: dict[str, Any] = {} if "dtype" in given else {"dtype": recipe.model.dtype}
    is_rounded = recipe.model.head_dtype == "float32" and recipe.model.dtype != "float32"
    if is_rounded and "enable-fp32-lm-head" not in given:
        own["enable-fp32-lm-head"] = True
    gpus = recipe.engine.gpus_of(replica)
    if gpus is not None and len(gpus) > 1 and not given & PARALLEL_ARGS:
        own["tp-size"] = len(gpus)
    return own | recipe.engine.args


@contextlib.asynccontextmanager
async def open_servers(
    recipe: Recipe,
    folder: Path,
    *,
    logs: Path,
    name: str = "sglang",
    version: int = 0,
    note: Callable[[str], None] = lambda text: None,
    canary: Canary | None = None,
    launcher: Launcher = ServerProcess,
) -> AsyncIterator[NodeServers]:
    """Start the recipe's servers on the model in `folder` concurrently; they serve it as `version`. Their
    logs are `name`-K.log.

    Raises ConfigError if one does not start, with its name, the reason and its log.
    """
    launches = [Launch(recipe=recipe, folder=folder, replica=k) for k in range(recipe.engine.num_replicas)]
    paths = [logs / f"{name}-{launch.replica}.log" for launch in launches]
    replicas = [
        _replica(launch, path, version, note, canary, launcher) for launch, path in zip(launches, paths, strict=True)
    ]
    send_to_all = None
    async with contextlib.AsyncExitStack() as stack:
        if recipe.engine.publish == "broadcast":
            backend = "gloo" if recipe.engine.args.get("device") == "cpu" else "nccl"
            folder_of_all = logs.with_name("weights")
            send_to_all = BroadcastToAll(backend=backend, folder=folder_of_all, timeout_s=UPDATE_TIMEOUT_S)
        note(f"starting {len(replicas)} inference servers; their logs are in {logs}")
        await _enter_all(stack, replicas, paths)
        if send_to_all is not None:
            stack.push_async_callback(send_to_all.close)
        limits = FleetLimits(
            turn_timeout_s=recipe.engine.trajectory_timeout_s,
            publish_timeout_s=3 * UPDATE_TIMEOUT_S,
            restart_timeout_s=1800.0,
        )
        fleet = Fleet(
            replicas,
            policy=make_policy(recipe.engine.policy),
            limits=limits,
            restart=lambda k: replicas[k].restart(),
            send_to_all=send_to_all,
            version=version,
        )
        await stack.enter_async_context(fleet)

        def start_from(folder: Path) -> None:
            for launch in launches:
                launch.folder = folder

        yield NodeServers(fleet=fleet, replicas=replicas, recipe=recipe, start_from=start_from, canary=canary)


def server_environment(gpus: list[int] | None, environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Environment variables that a server adds to ours, or removes (None)."""
    return {**server_env(gpus, environment), **{name: None for name in environment if NOT_THEIRS.fullmatch(name)}}


def _replica(
    launch: Launch, log: Path, version: int, note: Callable[[str], None], canary: Canary | None, launcher: Launcher
) -> Replica:
    rows = vocabulary_size(str(launch.folder))
    if rows is None:
        raise ConfigError(f"{launch.folder / 'config.json'} has no vocab_size; a server needs it")
    return Replica(
        launch,
        model=DiskWeights(launch.folder),
        vocab_size=rows,
        version=version,
        log_path=log,
        env=server_environment(launch.recipe.engine.gpus_of(launch.replica)),
        progress=lambda text: note(f"server {launch.replica}: {text}"),
        engine_options={"hang_timeout_s": HANG_TIMEOUT_S, "update_timeout_s": UPDATE_TIMEOUT_S},
        canary=canary,
        launcher=launcher,
    )


async def _enter_all(stack: contextlib.AsyncExitStack, replicas: Sequence[Replica], logs: Sequence[Path]) -> None:
    with working("starting inference servers", unit="servers", total=len(replicas)) as work:

        async def enter(replica: Replica) -> None:
            await replica.__aenter__()
            work.done += 1

        outcomes = await asyncio.gather(*map(enter, replicas), return_exceptions=True)
    failed: list[tuple[int, BaseException]] = []
    for k, (replica, outcome) in enumerate(zip(replicas, outcomes, strict=True)):
        if isinstance(outcome, BaseException):
            failed.append((k, outcome))
        else:
            stack.push_async_exit(replica)
    for k, error in failed:
        if not isinstance(error, InferenceError):
            raise error
        last = (error.detail.strip().splitlines() or [""])[-1]
        raise ConfigError(
            f"engine.kind = 'sglang': server {k} did not start ({error.detail.splitlines()[0]}: {last}); "
            f"{logs[k]} has all it said, docs/reference/sglang.md what it needs"
        )
