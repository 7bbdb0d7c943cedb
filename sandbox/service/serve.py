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
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

from rocstar.sandbox.child.cpp import command_from
from rocstar.sandbox.child.flavours import FLAVOURS, Flavour
from rocstar.sandbox.child.user_flavours import read_flavours
from rocstar.sandbox.command_line import INTERRUPTED, Starting, print_status, require_own_users
from rocstar.sandbox.extras import left_out, missing_extra_message, offered_flavours
from rocstar.sandbox.loopback.access import access_log, networks
from rocstar.sandbox.loopback.listening import Address, address_of, bind, listen
from rocstar.sandbox.loopback.tokens import (
    Owners,
    read_owners,
    require_token_unless_loopback,
    reread_on_hangup,
)
from rocstar.sandbox.pool.event_loop_priority import PROGRAMS_NICE, SWITCH_S, raised_priority
from rocstar.sandbox.pool.pool import SandboxPool, default_max_live, default_memory_bytes
from rocstar.sandbox.service.app import Service, ServiceOptions
from rocstar.sandbox.service.auth import TOKEN_VARIABLE
from rocstar.sandbox.service.calls import Outcome
from rocstar.sandbox.service.decode_code_judge import JudgeOptions
from rocstar.sandbox.service.rules import Rules
from rocstar.sandbox.types import (
    DEFAULT_LIMITS,
    BatchSandbox,
    ExecRequest,
    ExecResult,
    Limits,
    Session,
    SessionSandbox,
)

FAIL_S = 5.0
"""How long calls have to answer that they failed, once the sandbox is closed under them."""

MAX_DESCRIPTORS = 65_536
OWN_DESCRIPTORS = 128
"""Of the service besides connections: the sandbox's socket, Redis', log files, imports."""


class SplitSandbox:
    """Stateless calls go to one sandbox (a fabric of many nodes), sessions to another: an interpreter lives
    on the node that holds it."""

    def __init__(self, stateless: BatchSandbox, stateful: SessionSandbox) -> None:
        self._stateless = stateless
        self._stateful = stateful

    async def run(self, request: ExecRequest, *, deadline: float | None = None) -> ExecResult:
        return await self._stateless.run(request, deadline=deadline)

    def run_batch(
        self, requests: Sequence[ExecRequest], *, deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        return self._stateless.run_batch(requests, deadline=deadline)

    async def open_session(
        self,
        *,
        flavour: str = "auto",
        limits: Limits = DEFAULT_LIMITS,
        seed: int | None = None,
        owner: str = "",
    ) -> Session:
        return await self._stateful.open_session(flavour=flavour, limits=limits, seed=seed, owner=owner)

    @property
    def capacity(self) -> int | None:
        """Programs at a time that are not of sessions; None when the sandbox does not say."""
        return getattr(self._stateless, "capacity", None)

    def parts(self) -> tuple[object, object]:
        return self._stateful, self._stateless


def run(options: argparse.Namespace) -> int:
    """Serves until a signal. Raises ValueError, OSError or SandboxError for what keeps it from starting."""
    import uvloop

    address = address_of(options)
    owners = read_owners(options.token_file, os.environ, TOKEN_VARIABLE)
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
    rules = Rules(
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
        rules=rules,
        judge=judge,
        owners=owners,
        trusted_proxies=networks(options.trusted_proxy),
        max_connections=max_connections(),
        max_calls=options.max_calls,
        max_body_bytes=options.max_body_bytes,
        num_workers=options.max_live or default_max_live(),
        session_lease_s=options.session_lease_s,
        max_sessions=options.max_sessions,
    )


def chosen_flavours(options: argparse.Namespace) -> tuple[list[str], dict[str, Flavour]]:
    """Names of those to start, and those of a user's own. Raises ValueError, OSError for their file."""
    own = read_flavours(options.flavour_file) if options.flavour_file else {}
    names = list(dict.fromkeys((*options.flavours.split(","), *own)))
    for name in names:
        if name not in FLAVOURS and name not in own:
            raise ValueError(f"--flavours has {name!r}; there are {', '.join((*FLAVOURS, *own))}")
    return names, own


class Ending:
    """What signals ask for. `stop`: end. `hurry`: at once. `status`: of the process then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.status = 0
        loop.add_signal_handler(signal.SIGTERM, self._ask, 0)
        loop.add_signal_handler(signal.SIGINT, self._ask, INTERRUPTED)

    def _ask(self, status: int) -> None:
        if self.stop.is_set():
            self.hurry.set()
        else:
            self.status = status
            self.stop.set()


async def _serve(options: argparse.Namespace, settings: ServiceOptions, address: Address) -> int:
    ending = Ending(asyncio.get_running_loop())
    listening = bind(address)
    async with AsyncExitStack() as stack:
        stack.enter_context(reread_on_hangup(settings.owners, lambda line: print_status(line, "serve")))
        for one in listening:
            stack.callback(one.close)
        opening = asyncio.create_task(_open_sandbox(options, settings, stack))
        if not await _opened(opening, ending.stop):
            print_status("interrupted before it was ready", "serve")
            return ending.status
        service = Service(opening.result(), settings)
        log = access_log(options.access_log, "rocstar.sandbox.access")
        async with service.opened(access_log=log, shutdown_s=FAIL_S) as server:
            announce(listen(listening))
            service.door.open(listening, server)
            _announce_rules(settings)
            gc.freeze()  # what was imported lives as long as the process
            await ending.stop.wait()
            service.drain()
            in_flight = service.metrics.in_flight
            print_status(f"ending; {in_flight} calls in flight may end within {options.drain_s:g} s", "serve")
            service.door.close()
            if not await _drained(service, ending.hurry, options.drain_s):
                await stack.aclose()
                await _drained(service, asyncio.Event(), FAIL_S)
    return ending.status


async def _opened(opening: "asyncio.Task[SessionSandbox]", stop: asyncio.Event) -> bool:
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
        settings.rules.flavours,
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
    if options.flavours == ",".join(offered_flavours()):  # nobody chose
        for line in left_out():
            print_status(line, "serve")
    flavours = ", ".join(settings.rules.flavours)
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


async def _drained(service: Service, hurry: asyncio.Event, timeout_s: float) -> bool:
    """Whether no call is in flight any more, when the time is over or somebody hurries."""
    waits = [asyncio.create_task(service.admission.drained()), asyncio.create_task(hurry.wait())]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return service.metrics.in_flight == 0


def announce(names: Sequence[str], path: str = "") -> None:
    """Print a line for each socket that takes connections."""
    for name in names:
        print(f"rocstar sandbox: serving on {name}{path}", flush=True)


def _announce_rules(settings: ServiceOptions) -> None:
    flavours = ", ".join(settings.rules.flavours)
    names = ", ".join(f"{one.name} ({one.weight})" for one in settings.owners.known if one.name)
    guard = "token required" if settings.owners else "no token, loopback only"
    guard += f"; owners by weight: {names}" if names else ""
    print(f"rocstar sandbox: {settings.num_workers} programs at a time; {flavours}; {guard}", flush=True)


def raise_descriptor_limit() -> None:
    """A connection is a descriptor, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_connections() -> int:
    """As many as there are descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, soft)
    return max(16, most - OWN_DESCRIPTORS)
