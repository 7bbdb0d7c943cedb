"""A run on several nodes: look at every node, start torchrun on each, start again when a process dies.

    python cluster/launch.py RECIPE --hosts gpu-a,gpu-b [--section.field=value ...]

    this ─┬─ shell of node 0 ─ on_node.py ─ torchrun ─ ranks        first `rocstar doctor --node` in its place
          ├─ shell of node 1 ─ on_node.py ─ torchrun ─ ranks
          └─ shell of node 2 ─ on_node.py ─ torchrun --role=server ─ one process, of --serving-hosts

Hosts are names that --shell reaches and the nodes know, the first that of rank 0; NAME=ADDRESS where the
nodes know it by another. Those of --serving-hosts only serve, on all their GPUs. Folder, virtual environment,
model and run directory are the same on all nodes (a shared file system). Standard output is that of the
nodes.

When a node's torchrun ends with an error, or its connection does, the others are ended and all are started
again with --resume, at most --restarts times without a new checkpoint in between; but not where the first
start ends, before any checkpoint, because recipe, options, paths or disk are not usable. Exit codes: 0 the
run is complete, 1 it ended that often, 2 a node is not fit, or recipe or command are wrong, 130 and 143
interrupted (nothing is left running).

Who waits: this process for every node, without limit while a run goes on; for each look at a node LOOK_S, for
the rest of the nodes TOGETHER_S when one is done, for a node's end when it is told to end STOP_S.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ON_NODE = Path(__file__).with_name("on_node.py").resolve()
SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=8 {host} {command}"
LOOK_S, TOGETHER_S, STOP_S = 300.0, 900.0, 60.0
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 120.0
"""Before a restart, doubling: a node that went down needs time, and so does memory of a dead process."""
CLOCK_S = 1.0
LINE_BYTES = 1 << 24
OWN = "ROCSTAR_"
SENT = (
    *(OWN, "NCCL_", "RCCL_", "GLOO_", "SGLANG_", "HF_", "OMP_", "TORCH_", "PYTORCH_", "TRITON_", "CUDA_"),
    *("HSA_", "HIP_", "ROCR_", "HIPBLASLT_", "MIOPEN_", "AITER_", "GPU_", "AMD_"),
)
"""Variables with these beginnings go to every node; a shell like srun's brings all of them anyway."""
SECRET = frozenset(("KEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN", "CREDENTIALS"))
"""A variable with one of these words in its name is not sent, but for ROCSTAR_*, which a run needs on its
nodes."""
ALIKE = ("rocstar", "commit", "python", "torch")
PROBLEM, INTERRUPTED, TERMINATED = 2, 130, 143


class Unfit(Exception):
    """Nodes on which the run cannot go; the message says which and why, a line each."""


class Mistake(Exception):
    """The run refused its recipe, options, paths or disk; the message says where. It has said why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node: as the shell reaches it, and as the other nodes do."""

    name: str
    address: str

    @staticmethod
    def parse(text: str) -> Host:
        name, _, address = text.partition("=")
        return Host(name=name, address=address or name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to run, and where."""

    recipe: str
    run_dir: Path
    fields: list[str]
    learners: list[Host]
    servers: list[Host]
    """Nodes that only serve."""
    shell: list[str]
    port: int
    ranks: int | None
    """Of each node that learns; None: as the doctor finds."""
    binaries: Path
    """Folder of python, rocstar and torchrun."""
    folder: Path = field(default_factory=Path.cwd)

    @property
    def hosts(self) -> list[Host]:
        """All, by the numbers of their nodes."""
        return [*self.learners, *self.servers]

    def checkpoints(self) -> set[str]:
        """Whole ones, by their paths."""
        return {str(path) for path in self.run_dir.glob("**/checkpoints/*/COMPLETE")}

    def look(self, host: Host) -> list[str]:
        """The doctor's command on that node."""
        return [
            *(str(self.binaries / "rocstar"), "doctor", "--node", self.recipe, "--json"),
            *(["--serves"] if host in self.servers else []),
            *("--nodes", str(len(self.hosts)), "--port", str(self.port)),
            *("--output-dir", str(self.run_dir), *self.fields),
        ]

    def start(self, node: int, ranks: int) -> list[str]:
        """The command of a node."""
        resume = ["--resume"] if (self.run_dir / "metrics.jsonl").exists() else []
        serves = node >= len(self.learners)
        number = ["--nproc-per-node=1", "--role=server"] if serves else [f"--nproc-per-node={ranks}"]
        return [
            *(str(self.binaries / "torchrun"), f"--nnodes={len(self.hosts)}", *number),
            *(f"--node-rank={node}", f"--master-addr={self.hosts[0].address}", f"--master-port={self.port}"),
            *("-m", "rocstar.train", self.recipe, "--output-dir", str(self.run_dir), *resume, *self.fields),
        ]


def sent(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that go to a node."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(SENT) and (name.startswith(OWN) or SECRET.isdisjoint(name.upper().split("_")))
    }


@contextlib.asynccontextmanager
async def on_node(
    job: Job, host: Host, command: Sequence[str], *, asks_time: bool = False
) -> AsyncIterator[tuple[asyncio.subprocess.Process, float]]:
    """The command on a node, and the seconds by which its clock is before ours, where that is asked.

    OSError, TimeoutError, EOFError: it could not be started there.
    """
    arguments = [str(job.binaries / "python"), str(ON_NODE), *(["--clock"] if asks_time else [])]
    words = [word.format(host=host.name, command=shlex.join(arguments)) for word in job.shell]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE if asks_time else None,
        limit=LINE_BYTES,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    try:
        assert process.stdin is not None
        order = {"command": list(command), "folder": str(job.folder), "environment": sent(os.environ)}
        offset_s = 0.0
        if asks_time:
            assert process.stdout is not None
            async with asyncio.timeout(LOOK_S):
                if await process.stdout.readline() != b"ready\n":
                    raise EOFError
        asked = time.time()
        with contextlib.suppress(ConnectionError):  # its exit code says why
            process.stdin.write(json.dumps(order).encode() + b"\n")
            await process.stdin.drain()
        if asks_time:
            assert process.stdout is not None
            async with asyncio.timeout(LOOK_S):
                theirs = float(await process.stdout.readline() or b"nan")
            offset_s = theirs - (asked + time.time()) / 2
        yield process, offset_s
    finally:
        await stopped(process)


async def stopped(process: asyncio.subprocess.Process) -> None:
    """End it by closing its line; kill our end of it where that takes longer than STOP_S."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


# ---- before a start ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the doctor said of a node."""

    host: Host
    offset_s: float
    checks: list[dict]
    node: dict


async def look_at(job: Job, host: Host) -> Looked:
    """Unfit: it cannot be reached, or the doctor did not come to its end."""
    try:
        async with on_node(job, host, job.look(host), asks_time=True) as (process, offset_s):
            assert process.stdout is not None
            async with asyncio.timeout(LOOK_S):
                text = await process.stdout.read()
                await process.wait()
        told = json.loads(text)
    except (OSError, TimeoutError, EOFError, ValueError) as error:
        why = str(error) or type(error).__name__
        words = shlex.join(word.format(host=host.name, command="true") for word in job.shell)
        raise Unfit(f"{host.name}: no answer of `rocstar doctor` ({why}); does `{words}` work?") from None
    return Looked(host=host, offset_s=offset_s, checks=told["checks"], node=told["node"])


async def look_at_all(job: Job) -> int:
    """Look at every node and tell what was found; how many ranks each has. Unfit: the run cannot go there."""
    outcomes = await asyncio.gather(*(look_at(job, host) for host in job.hosts), return_exceptions=True)
    problems, seen = [], []
    for outcome in outcomes:
        if isinstance(outcome, Unfit):
            problems.append(str(outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            seen.append(outcome)
    for one in seen:
        for check in one.checks:
            line = f"{one.host.name}: {check['name']}: {check['found']}; {check['fix']}"
            if check["fitness"] == "problem":
                problems.append(line)
            elif check["fitness"] == "warning":
                say(f"warning: {line}")
        if not abs(one.offset_s) < CLOCK_S:
            say(f"warning: {one.host.name}: its clock is {one.offset_s:+.1f} s from here; start chrony there")
    learners = [one for one in seen if one.host in job.learners]
    problems += unlike(seen) + unequal(learners, job.ranks)
    if problems:
        raise Unfit("\n".join(problems))
    return job.ranks or int(learners[0].node["ranks"])


def unlike(seen: Sequence[Looked]) -> list[str]:
    """In what nodes differ that have to be alike."""
    problems = []
    for name in ALIKE:
        versions = {one.host.name: one.node["versions"].get(name, "") for one in seen}
        if len(set(versions.values())) > 1:
            told = ", ".join(f"{host} {version or '-'}" for host, version in versions.items())
            problems.append(f"{name} differs: {told}; install the same on every node")
    return problems


def unequal(learners: Sequence[Looked], ranks: int | None) -> list[str]:
    """Nodes that learn have as many ranks each."""
    counts = {one.host.name: one.node.get("ranks") for one in learners}
    if ranks is not None or len(set(counts.values())) < 2:
        return []
    told = ", ".join(f"{host} {count}" for host, count in counts.items())
    return [f"GPUs that learn differ: {told}; give --ranks, or leave nodes out of --hosts"]


# ---- a start ----


async def attempt(job: Job, ranks: int) -> str:
    """One start on every node, to its end; why it failed, "" where it did not. All nodes have ended then.

    Mistake: a node ended with PROBLEM, if only after another, that was told of it, had ended otherwise.
    """
    processes: list[asyncio.subprocess.Process] = []
    async with contextlib.AsyncExitStack() as stack:
        try:
            why = await _first_failure(job, ranks, processes, stack)
        finally:
            for process in processes:  # all are told at once; the stack then waits for one after the other
                assert process.stdin is not None
                process.stdin.close()
    mistaken = [h.name for h, p in zip(job.hosts, processes, strict=False) if p.returncode == PROBLEM]
    if mistaken:
        raise Mistake(f"{', '.join(mistaken)}: recipe, options, paths or disk are not usable, as said above")
    return why


async def _first_failure(
    job: Job, ranks: int, processes: list[asyncio.subprocess.Process], stack: contextlib.AsyncExitStack
) -> str:
    """Start the nodes into `processes`, and wait for all of them, or for the first that fails."""
    for number, host in enumerate(job.hosts):
        try:
            node = on_node(job, host, job.start(number, ranks))
            processes.append((await stack.enter_async_context(node))[0])
        except OSError as error:
            return f"{host.name}: {error}"
    waits = {asyncio.create_task(p.wait()): host for p, host in zip(processes, job.hosts, strict=True)}
    pending, limit_s = set(waits), None
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return f"{waits[pending.pop()].name} went on for {limit_s:.0f} s when another was done"
            for one in done:
                if code := one.result():
                    return f"{waits[one].name} ended with exit code {code}"
            limit_s = TOGETHER_S
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return ""


async def run(job: Job, *, restarts: int, looks: bool) -> int:
    """The run to its end, over as many starts as that takes; the exit code.

    What worked once is no mistake, and neither is what saved a checkpoint first: a server perhaps had no
    place yet, a file system was away for a moment.
    """
    without, pause_s = 0, FIRST_PAUSE_S
    known = job.checkpoints()
    began = False
    while True:
        try:
            ranks = await look_at_all(job) if looks else job.ranks or 1
        except Unfit as error:
            for line in str(error).splitlines():
                say(line)
            if not began:
                return PROBLEM
            why = "a node is not fit"
        else:
            try:
                why = await attempt(job, ranks)
            except Mistake as error:
                why = str(error)
                if not began and job.checkpoints() == known:
                    say(f"{why}; nothing is started again")
                    return PROBLEM
            began = True
            if not why:
                return 0
        now = job.checkpoints()
        if now != known:
            known, without, pause_s = now, 0, FIRST_PAUSE_S
        if without == restarts:
            say(f"{why}; {without} restarts brought no new checkpoint: that is enough")
            return 1
        without += 1
        say(f"{why}; restart {without} of {restarts} in {pause_s:.0f} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


async def main_until_told(job: Job, *, restarts: int, looks: bool) -> int:
    """`run`, until SIGINT or SIGTERM: then every node is ended first."""
    loop, told = asyncio.get_running_loop(), []
    running = asyncio.create_task(run(job, restarts=restarts, looks=looks))

    def stop(code: int) -> None:
        told.append(code)
        running.cancel()

    for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)):
        loop.add_signal_handler(number, stop, code)
    try:
        return await running
    except asyncio.CancelledError:
        if not told:
            raise
        say("interrupted; every node has been told to end")
        return told[0]


def parse(argv: Sequence[str]) -> tuple[Job, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("recipe")
    parser.add_argument("--hosts", required=True, help="NAME[=ADDRESS] of every node, with commas between")
    text = "NAME[=ADDRESS] of nodes that only serve, on all their GPUs (engine.kind = 'sglang')"
    parser.add_argument("--serving-hosts", default="", help=text)
    text = "how a command gets to a node; {host} and {command} stand for both. Default: ssh"
    parser.add_argument("--shell", default=SSH, metavar="TEMPLATE", help=text)
    parser.add_argument("--output-dir", type=Path, help="run directory; default runs/NAME, of recipe NAME.toml")
    text = "processes on each of --hosts; default: its GPUs, without those that the recipe gives servers"
    parser.add_argument("--ranks", type=int, help=text)
    parser.add_argument("--port", type=int, default=29500, help="of rank 0's node")
    text = "at most so many restarts without a new checkpoint in between (default: %(default)s)"
    parser.add_argument("--restarts", type=int, default=3, help=text)
    parser.add_argument("--look-only", action="store_true", help="look at every node, and start nothing")
    parser.add_argument("--no-look", action="store_true", help="start without a look; needs --ranks")
    options, fields = parser.parse_known_args(argv)
    wrong = [one for one in fields if not one.startswith("--") or "." not in one.partition("=")[0]]
    if wrong:
        parser.error(f"{wrong[0]!r} is no option of this and no --section.field=value")
    if options.no_look and not options.ranks:
        parser.error("--no-look: nobody then says how many ranks a node has; give --ranks")
    if options.restarts < 0 or (options.ranks is not None and options.ranks < 1):
        parser.error("--restarts is 0 or more, --ranks 1 or more")
    if "{command}" not in options.shell:
        parser.error(f"--shell {options.shell!r} has no {{command}}")
    job = Job(
        recipe=options.recipe,
        run_dir=options.output_dir or Path("runs") / Path(options.recipe).stem,
        fields=fields,
        learners=[Host.parse(text) for text in options.hosts.split(",") if text],
        servers=[Host.parse(text) for text in options.serving_hosts.split(",") if text],
        shell=shlex.split(options.shell),
        port=options.port,
        ranks=options.ranks,
        binaries=Path(sys.executable).parent,
    )
    if not job.learners:
        parser.error(f"--hosts {options.hosts!r} names no node")
    if twice := {host.name for host in job.learners} & {host.name for host in job.servers}:
        parser.error(f"--serving-hosts: {', '.join(sorted(twice))} is one of --hosts; name each node once")
    return job, options


def main(argv: Sequence[str] | None = None) -> int:
    job, options = parse(sys.argv[1:] if argv is None else argv)
    if options.look_only:
        try:
            ranks = asyncio.run(look_at_all(job))
        except Unfit as error:
            for line in str(error).splitlines():
                say(line)
            return PROBLEM
        serve = f", and {len(job.servers)} that only serve" if job.servers else ""
        say(f"{len(job.learners)} nodes are fit, with {ranks} ranks each{serve}")
        return 0
    return asyncio.run(main_until_told(job, restarts=options.restarts, looks=not options.no_look))


if __name__ == "__main__":
    sys.exit(main())
