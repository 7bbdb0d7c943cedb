"""`rocstar sandbox worker`: run the calls that a service puts into Redis on this node."""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from rocstar.sandbox.child.flavours import FLAVOURS
from rocstar.sandbox.command_line import INTERRUPTED, Starting, Waiting, print_status, require_own_users
from rocstar.sandbox.extras import left_out, missing_extra_message, offered_flavours
from rocstar.sandbox.types import SandboxError

REACH_S = 3.0
"""Seconds in which a starting service must reach its Redis. A worker waits, because it may start before
Redis."""

URL_VARIABLES = ("ROCSTAR_REDIS_URL", "REDIS_URL", "REDIS_URI")


def redis_url(options: argparse.Namespace | None = None) -> str | None:
    """Return the URL from option, file or environment (without `options`: environment only), or None.

    Raise ValueError for an empty file, OSError for an unreadable one.
    """
    if options is not None and options.redis:
        return str(options.redis)
    if options is not None and options.redis_file:
        lines = Path(options.redis_file).read_text(encoding="utf-8-sig", errors="replace").split()
        if not lines:
            raise ValueError(f"{options.redis_file} is empty. Write the Redis URL into its first line.")
        return lines[0]
    return next((os.environ[name] for name in URL_VARIABLES if os.environ.get(name)), None)


def warn_of_password(options: argparse.Namespace) -> None:
    if options.redis and "@" in options.redis:
        print_status(
            f"the password in --redis is visible in the process list. Use {URL_VARIABLES[0]} or --redis-file instead."
        )


def run_worker(options: argparse.Namespace) -> int:
    """Run the verb. Raise ValueError, OSError or SandboxError for errors that the user must fix."""
    if missing := missing_extra_message("rocstar sandbox worker", "fabric"):
        raise ValueError(missing)
    import uvloop

    from rocstar.sandbox.pool.event_loop_priority import SWITCH_S, raised_priority
    from rocstar.sandbox.pool.pool import default_max_live

    url = redis_url(options)
    if url is None:
        raise ValueError(f"no Redis URL. Pass --redis URL or set {URL_VARIABLES[0]}.")
    flavours = tuple(name for name in options.flavours.split(",") if name)
    if unknown := sorted(set(flavours) - set(FLAVOURS)):
        raise ValueError(f"unknown flavour {unknown[0]!r}. Choose from {', '.join(FLAVOURS)}.")
    if not flavours:
        raise ValueError(f"--flavours is empty. Choose from {', '.join(FLAVOURS)}.")
    max_live = options.max_live or default_max_live()
    warn_of_password(options)
    if flavours == offered_flavours():  # the default
        for line in left_out():
            print_status(line, "worker")
    sys.setswitchinterval(SWITCH_S)
    with raised_priority():
        return uvloop.run(work(url, flavours, max_live, options))


async def work(url: str, flavours: tuple[str, ...], max_live: int, options: argparse.Namespace) -> int:
    """Run the worker and return its exit status."""
    # --help needs neither Redis nor the pool.
    from rocstar.sandbox.fabric import RedisWorker
    from rocstar.sandbox.fabric.redis_connection import PREFIX, RedisConnection, redact_url
    from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE
    from rocstar.sandbox.pool.pool import SandboxPool

    place = redact_url(url)
    starting = Starting("worker", f"{', '.join(flavours)} for Redis at {place}")
    interrupted = False
    for name in URL_VARIABLES:  # the pool's processes do not inherit them either
        os.environ.pop(name, None)
    memory = {} if options.memory_bytes is None else {"memory_bytes": options.memory_bytes}
    async with SandboxPool(flavours, max_live=max_live, nice=PROGRAMS_NICE, on_warm=starting.warm, **memory) as pool:
        require_own_users(pool.isolation, options.allow_shared_user, "worker")
        worker = RedisWorker(
            RedisConnection(
                url,
                Waiting("worker", f"Redis at {place}", options.patience_s).tried,
                lambda line: print_status(line, "worker"),
            ),
            pool,
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
            if not worker.stop() or not worker.ready.is_set():  # for example still waiting for Redis
                running.cancel()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, end, False)
        loop.add_signal_handler(signal.SIGINT, end, True)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # closed terminals and log rotation
            loop.add_signal_handler(number, lambda: None)
        try:
            await asyncio.wait([running])
        finally:
            announcing.cancel()
            running.cancel()
        counts = (f"{count} {name.replace('_', ' ')}" for name, count in worker.counters().items() if count)
        print_status(f"ended after {', '.join(counts) or 'no calls'}", "worker")
        if not running.cancelled():
            running.result()
    return INTERRUPTED if interrupted else 0


async def reach(url: str) -> None:
    """Raise SandboxError of kind `fabric` if Redis does not answer within REACH_S."""
    from rocstar.sandbox.fabric.redis_connection import RedisConnection

    connection = RedisConnection(url)
    try:
        async with asyncio.timeout(REACH_S):
            await connection.open(REACH_S)
    except (TimeoutError, SandboxError) as error:
        if isinstance(error, SandboxError) and not error.retryable:
            raise
        raise SandboxError(
            f"Redis at {connection.redacted_url} did not answer within {REACH_S:g} s ({connection.reason}). "
            "Start it, fix the URL, or omit --redis to run everything on this node.",
            kind="fabric",
            retryable=True,
        ) from None
    finally:
        await connection.close()


async def announce(ready: asyncio.Event, what: str) -> None:
    await ready.wait()
    print_status(f"ready, {what}", "worker")
