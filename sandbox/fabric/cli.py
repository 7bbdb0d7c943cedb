"""`rocstar sandbox worker`: run calls that a service puts into Redis, on this node.

It ends with status 0 after SIGTERM and 130 after Ctrl-C, when the running programs are answered (or handed
back to Redis after --drain-s); a second signal ends it at once. It ends with status 2 when Redis refuses it
or is away for --patience-s; until then it says every few seconds that it waits.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.console import INTERRUPTED, Starting, Waiting, require_own_users, say
from rocstar.sandbox.extras import lacking, left_out, offered_flavours
from rocstar.sandbox.types import SandboxError

REACH_S = 3.0
"""How long a service that starts tries to reach its Redis. A worker waits for it: it may be started first."""

URL_VARIABLES = ("ROCSTAR_REDIS_URL", "REDIS_URL", "REDIS_URI")


def add_redis_options(parser: argparse.ArgumentParser) -> None:
    """Where Redis is; read with `redis_url`."""
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="redis://, rediss:// or unix:// URL of the Redis that joins the nodes; default: "
        f"${URL_VARIABLES[0]}. A command line is readable by every user of the machine: give a URL with a "
        "password in that variable or with --redis-file",
    )
    parser.add_argument("--redis-file", metavar="FILE", help="file whose first line is the Redis URL")
    parser.add_argument("--redis-prefix", metavar="PREFIX", help="begin of all keys, to share a Redis")


def redis_url(options: argparse.Namespace | None = None) -> str | None:
    """The URL given by option, file or environment (without `options` by environment alone); None without
    any. Raises ValueError for an empty file, OSError for one that cannot be read."""
    if options is not None and options.redis:
        return str(options.redis)
    if options is not None and options.redis_file:
        lines = Path(options.redis_file).read_text(encoding="utf-8-sig", errors="replace").split()
        if not lines:
            raise ValueError(f"{options.redis_file} is empty; write the Redis URL into its first line")
        return lines[0]
    return next((os.environ[name] for name in URL_VARIABLES if os.environ.get(name)), None)


def warn_of_password(options: argparse.Namespace) -> None:
    if options.redis and "@" in options.redis:
        say(
            "the password in --redis shows in the process list; "
            f"better use {URL_VARIABLES[0]} or --redis-file"
        )


def add_worker_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser(
        "worker", help="run calls that arrive through Redis on this node", description=__doc__
    )
    add_redis_options(parser)
    parser.add_argument(
        "--flavours",
        default=",".join(offered_flavours()),
        metavar="NAME[,NAME...]",
        help="what this node can run; default: %(default)s",
    )
    parser.add_argument("--max-live", type=int, metavar="N", help="programs at a time; default 1.5 per core")
    parser.add_argument(
        "--memory-bytes", type=int, metavar="N", help="of all programs together; default: the pool's"
    )
    parser.add_argument(
        "--allow-shared-user",
        action="store_true",
        help="run as root even where programs cannot have a user of their own",
    )
    parser.add_argument("--name", help="how the worker is listed; default: host, process and a random part")
    parser.add_argument("--patience-s", type=float, default=300.0, help="how long Redis may be away")
    parser.add_argument("--drain-s", type=float, default=10.0, help="how long to finish after a signal")
    parser.set_defaults(run=run_worker)


def run_worker(options: argparse.Namespace) -> int:
    """Raises ValueError, OSError or SandboxError for what the user has to mend."""
    if missing := lacking("rocstar sandbox worker", "fabric"):
        raise ValueError(missing)
    import uvloop

    from rocstar.sandbox.pool.event_loop_priority import SWITCH_S, raised_priority
    from rocstar.sandbox.pool.pool import default_max_live

    url = redis_url(options)
    if url is None:
        raise ValueError(f"no Redis is given; use --redis URL or set {URL_VARIABLES[0]}")
    flavours = tuple(name for name in options.flavours.split(",") if name)
    if unknown := sorted(set(flavours) - set(FLAVOURS)):
        raise ValueError(f"unknown flavour {unknown[0]!r}; there are {', '.join(FLAVOURS)}")
    if not flavours:
        raise ValueError(f"--flavours names none; there are {', '.join(FLAVOURS)}")
    max_live = default_max_live() if options.max_live is None else options.max_live
    if max_live < 1:
        raise ValueError(f"--max-live is {max_live}; at least 1 program must be able to run")
    if not options.patience_s >= 0:  # NaN neither; without end it may be
        raise ValueError(f"--patience-s is {options.patience_s}; give seconds, 300 for example")
    if not 0 <= options.drain_s < float("inf"):
        raise ValueError(f"--drain-s is {options.drain_s}; give seconds, 10 for example")
    if options.memory_bytes is not None and options.memory_bytes < 1:
        raise ValueError(
            f"--memory-bytes is {options.memory_bytes}; give what all programs may take together"
        )
    warn_of_password(options)
    if flavours == offered_flavours():  # nobody chose
        for line in left_out():
            say(line, "worker")
    sys.setswitchinterval(SWITCH_S)
    with raised_priority():
        return uvloop.run(work(url, flavours, max_live, options))


async def work(url: str, flavours: tuple[str, ...], max_live: int, options: argparse.Namespace) -> int:
    """The exit status."""
    # --help needs neither Redis nor the pool.
    from rocstar.sandbox.fabric import RedisWorker, as_batch
    from rocstar.sandbox.fabric.link import PREFIX, Link, shown
    from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE
    from rocstar.sandbox.pool.pool import SandboxPool

    place = shown(url)
    starting = Starting("worker", f"{', '.join(flavours)} for Redis at {place}")
    interrupted = False
    for name in URL_VARIABLES:  # the pool starts its processes without them anyway
        os.environ.pop(name, None)
    memory = {} if options.memory_bytes is None else {"memory_bytes": options.memory_bytes}
    async with SandboxPool(
        flavours, max_live=max_live, nice=PROGRAMS_NICE, on_warm=starting.warm, **memory
    ) as pool:
        require_own_users(pool.isolation, options.allow_shared_user, "worker")
        worker = RedisWorker(
            Link(
                url,
                Waiting("worker", f"Redis at {place}", options.patience_s).tried,
                lambda line: say(line, "worker"),
            ),
            as_batch(pool),
            max_live,
            flavours=flavours,
            prefix=options.redis_prefix or PREFIX,
            name=options.name,
            patience_s=options.patience_s,
            drain_s=options.drain_s,
        )
        running = asyncio.create_task(worker.run())
        announcing = asyncio.create_task(announce(worker.ready, f"{worker.info} at {place}"))

        def end(by_hand: bool) -> None:
            nonlocal interrupted
            interrupted = interrupted or by_hand
            if not worker.stop() or not worker.ready.is_set():  # still waiting for Redis, say
                running.cancel()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, end, False)
        loop.add_signal_handler(signal.SIGINT, end, True)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # of closed terminals, rotated logs
            loop.add_signal_handler(number, lambda: None)
        try:
            await asyncio.wait([running])
        finally:
            announcing.cancel()
            running.cancel()
        say(f"ended; {dict(worker.counters())}", "worker")
        if not running.cancelled():
            running.result()
    return INTERRUPTED if interrupted else 0


async def reach(url: str) -> None:
    """Raises SandboxError of kind `fabric` when Redis does not answer within REACH_S."""
    from rocstar.sandbox.fabric.link import Link

    link = Link(url)
    try:
        async with asyncio.timeout(REACH_S):
            await link.open(REACH_S)
    except (TimeoutError, SandboxError) as error:
        if isinstance(error, SandboxError) and not error.retryable:
            raise
        raise SandboxError(
            f"Redis at {link.shown} did not answer within {REACH_S:g} s ({link.reason}); start it, mend the "
            "URL, or leave --redis out to run everything on this node",
            kind="fabric",
            retryable=True,
        ) from None
    finally:
        await link.close()


async def announce(ready: asyncio.Event, what: str) -> None:
    await ready.wait()
    say(f"ready, {what}", "worker")
