"""`rocstar sandbox serve`: the service as a process.

    start: options -> sockets bound -> does Redis answer? -> sandbox (pool; with --redis a fabric for
           stateless calls), a line for each flavour that is warm -> sockets listen -> "serving on"
    stop:  SIGTERM or Ctrl-C -> no new connections, POST answers 503 -> wait for calls in flight, at most
           --drain-s -> close the sandbox, which fails the rest with an answer -> close connections
           -> exit 0, or 130 after Ctrl-C
A second signal ends the waiting. One that comes during the start ends it. SIGHUP reads the token file again.
"""

import argparse
import asyncio
import gc
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rocstar.sandbox.child.cpp import command_from
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour
from rocstar.sandbox.child.user_flavours import read_flavours
from rocstar.sandbox.command_line import Starting, print_status, require_own_users
from rocstar.sandbox.extras import left_out, missing_extra_message, offered_flavours
from rocstar.sandbox.http.access_log import access_log, parse_networks
from rocstar.sandbox.http.drain import StopSignals, wait_until
from rocstar.sandbox.http.guard import (
    TOKEN_VARIABLE,
    Owners,
    load_owners,
    reload_on_sighup,
    require_token_unless_loopback,
)
from rocstar.sandbox.http.listening import Address, bind, listen, parse_address
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE, SWITCH_S, raised_priority
from rocstar.sandbox.pool.pool import SandboxPool, default_max_live, default_memory_bytes
from rocstar.sandbox.service.app import Service, ServiceOptions
from rocstar.sandbox.service.dialects.code_judge import JudgeOptions
from rocstar.sandbox.service.validation import ServiceLimits
from rocstar.sandbox.types import DEFAULT_LIMITS, BatchSandbox, Limits, SessionSandbox

FAIL_S = 5.0
"""The time for calls to report their failure after the sandbox was closed."""

MAX_DESCRIPTORS = 65_536
OWN_DESCRIPTORS = 128
"""Descriptors for the sandbox's socket, Redis, log files and imports."""


class SplitSandbox:
    """Stateless calls go to one sandbox (a fabric of many nodes), sessions to another: an interpreter lives
    on the node that holds it."""

    def __init__(self, stateless: BatchSandbox, stateful: SessionSandbox) -> None:
        self.parts = stateful, stateless
        self.run, self.run_batch = stateless.run, stateless.run_batch
        self.open_session = stateful.open_session

    @property
    def capacity(self) -> int | None:
        """Programs at a time that are not of sessions; None when the sandbox does not say."""
        return getattr(self.parts[1], "capacity", None)


def run(options: argparse.Namespace) -> int:
    """Serves until a signal. Raises ValueError, OSError or SandboxError for what keeps it from starting."""
    import uvloop

    address = parse_address(options)
    owners = load_owners(options.token_file, os.environ, TOKEN_VARIABLE)
    require_token_unless_loopback(address.tcp_hosts, owners, TOKEN_VARIABLE)
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    settings = service_options(options, owners)
    with raised_priority(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(options, settings, address))


def service_options(options: argparse.Namespace, owners: Owners) -> ServiceOptions:
    flavours, _ = chosen_flavours(options)
    judge = JudgeOptions.from_environment(os.environ)
    if options.max_live is None:
        options.max_live = judge.workers
    if options.memory_bytes is None:
        options.memory_bytes = default_memory_bytes()
    if judge.memory_bytes > options.memory_bytes:
        raise ValueError(
            f"MAX_MEMORY is {judge.memory_bytes >> 20} MiB per program, but all together may take only "
            f"{options.memory_bytes >> 20} MiB (--memory-bytes)"
        )
    service_limits = ServiceLimits(
        flavours=tuple(flavours),
        max_calls_per_batch=options.max_calls,
        max_wall_s=options.max_wall_s,
        max_memory_bytes=options.memory_bytes,
        default_limits=Limits(
            wall_s=min(DEFAULT_LIMITS.wall_s, options.max_wall_s),
            memory_bytes=min(DEFAULT_LIMITS.memory_bytes, options.memory_bytes),
            file_bytes=options.file_bytes,
            files=options.files,
        ),
    )
    return ServiceOptions(
        service_limits=service_limits,
        judge=judge,
        owners=owners,
        trusted_proxies=parse_networks(options.trusted_proxy),
        max_connections=max_connections(),
        max_calls=options.max_calls,
        max_body_bytes=options.max_body_bytes,
        num_workers=options.max_live or default_max_live(),
        session_lease_s=options.session_lease_s,
        max_sessions=options.max_sessions,
    )


def chosen_flavours(options: argparse.Namespace) -> tuple[list[str], dict[str, Flavour]]:
    """Return the names of the selected flavours, and the user's flavours. Raises ValueError or OSError for
    their file."""
    own = read_flavours(options.flavour_file) if options.flavour_file else {}
    names = list(dict.fromkeys((*options.flavours.split(","), *own)))
    for name in names:
        if name not in FLAVOURS and name not in own:
            raise ValueError(f"--flavours has {name!r}; there are {', '.join((*FLAVOURS, *own))}")
    return names, own


async def _serve(options: argparse.Namespace, settings: ServiceOptions, address: Address) -> int:
    listening = bind(address)
    async with AsyncExitStack() as stack:
        for one in listening:
            stack.callback(one.close)
        with (
            StopSignals().installed() as signals,
            reload_on_sighup(settings.owners, lambda line: print_status(line, "serve")),
        ):
            opening = asyncio.create_task(_open_sandbox(options, settings, stack))
            if not await _wait_opened(opening, signals.stop):
                print_status("interrupted before it was ready", "serve")
                return signals.status
            service = Service(opening.result(), settings)
            log = access_log(options.access_log, "rocstar.sandbox.access")
            async with service.opened(access_log=log, shutdown_s=FAIL_S) as server:
                announce(listen(listening))
                service.connections.open(listening, server)
                names = ", ".join(f"{one.name} ({one.weight})" for one in settings.owners.known if one.name)
                guard = "token required" if settings.owners else "no token, loopback only"
                guard += f"; owners by weight: {names}" if names else ""
                flavours = ", ".join(settings.service_limits.flavours)
                about = f"{settings.num_workers} programs at a time; {flavours}; {guard}"
                print(f"rocstar sandbox: {about}", flush=True)
                gc.freeze()  # the imported modules live as long as the process
                await signals.stop.wait()
                service.drain()
                in_flight = service.metrics.in_flight
                print_status(f"ending; {in_flight} calls in flight may end within {options.drain_s:g} s", "serve")
                service.connections.close()
                await wait_until(service.admission.drained(), signals.hurry, options.drain_s)
                if service.metrics.in_flight:
                    await stack.aclose()
                    await wait_until(service.admission.drained(), asyncio.Event(), FAIL_S)
            await stack.aclose()
            return signals.status


async def _wait_opened(opening: "asyncio.Task[SessionSandbox]", stop: asyncio.Event) -> bool:
    """False when a signal came before; nothing is left of the sandbox then."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.wait((opening,))
    return not opening.cancelled() and not stop.is_set()


async def _open_sandbox(
    options: argparse.Namespace, settings: ServiceOptions, stack: AsyncExitStack
) -> SessionSandbox:
    pool = SandboxPool(
        settings.service_limits.flavours,
        declared=chosen_flavours(options)[1],
        max_live=options.max_live,
        weights=settings.owners.weights(),
        memory_bytes=options.memory_bytes,
        max_sessions=options.max_sessions,
        lease_s=options.session_lease_s,
        cpp_command=command_from(os.environ),
        nice=PROGRAMS_NICE,
        on_warm=lambda flavour: starting.warm(flavour),
    )
    if options.flavours == ",".join(offered_flavours()):  # the default was not changed
        for line in left_out():
            print_status(line, "serve")
    flavours = ", ".join(settings.service_limits.flavours)
    if options.redis is None and options.redis_file is None:
        starting = Starting("serve", flavours)
        await stack.enter_async_context(pool)
        require_own_users(pool.isolation, options.allow_shared_user, "serve")
        return pool
    if missing := missing_extra_message("rocstar sandbox serve --redis", "fabric"):
        raise ValueError(missing)
    from rocstar.sandbox.fabric import RedisFabric
    from rocstar.sandbox.fabric.cli import URL_VARIABLES, reach, redis_url, warn_of_password
    from rocstar.sandbox.fabric.redis_connection import PREFIX, redact_url

    url = redis_url(options)
    if url is None:
        raise ValueError(f"--redis has no URL; give one, --redis-file or ${URL_VARIABLES[0]}")
    warn_of_password(options)
    for name in URL_VARIABLES:  # no child inherits it
        os.environ.pop(name, None)
    starting = Starting("serve", f"{flavours} for sessions; other calls go to Redis at {redact_url(url)}")
    await reach(url)
    fabric = await stack.enter_async_context(
        RedisFabric(
            url,
            prefix=options.redis_prefix or PREFIX,
            weights=settings.owners.weights(),
            note=lambda line: print_status(line, "serve"),
        )
    )
    await stack.enter_async_context(pool)
    require_own_users(pool.isolation, options.allow_shared_user, "serve")
    return SplitSandbox(fabric, pool)


def announce(names: Sequence[str], path: str = "") -> None:
    """Print a line for each socket that takes connections."""
    for name in names:
        print(f"rocstar sandbox: serving on {name}{path}", flush=True)


def raise_descriptor_limit() -> None:
    """A connection is a descriptor, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """Return the number of connections that the descriptor limit allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, soft)
    return max(16, most - OWN_DESCRIPTORS)
