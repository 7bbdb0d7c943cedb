"""The command lines of `rocstar sandbox serve` and `mcp`. They import no server, so `--help` stays fast."""

import argparse

from rocstar.sandbox.command_line import count_option, seconds_option
from rocstar.sandbox.extras import missing_extra_message, offered_flavours
from rocstar.sandbox.http.listening import add_access_log_options, add_listening_options
from rocstar.sandbox.types import DEFAULT_LIMITS

SERVE_DESCRIPTION = """Serve the sandbox over HTTP: the native API under /v1, code-judge's routes at the root,
SandboxFusion's /run_code and /run_jupyter. MAX_EXECUTION_TIME, MAX_MEMORY (MiB above the interpreter's own),
MAX_STDOUT_ERROR_LENGTH, MAX_QUEUE_WORK_LIFE_TIME, LONG_BATCH_MAX_QUEUE_WAIT_TIME and MAX_WORKERS in the
environment act as in code-judge. ROCSTAR_SANDBOX_TOKEN is the token, unless --token-file gives others."""


def add_serve_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = verbs.add_parser("serve", help="serve the sandbox over HTTP", description=SERVE_DESCRIPTION)
    add = parser.add_argument
    add_listening_options(parser, 8088)
    add_access_log_options(parser)
    add(
        "--redis",
        nargs="?",
        const="",
        metavar="URL",
        help="hand stateless calls to the workers on this Redis, sessions stay here; without URL it is taken "
        "from --redis-file or $ROCSTAR_REDIS_URL, which keeps a password out of the process list",
    )
    add("--redis-file", metavar="FILE", help="file whose first line is the Redis URL")
    add("--redis-prefix", metavar="PREFIX", help="begin of all keys, to share a Redis")
    add(
        "--flavours",
        default=",".join(offered_flavours()),
        metavar="A,B",
        help="interpreters kept warm (default: %(default)s); a call that names none gets one by its imports",
    )
    add_flavour_file(parser)
    add("--max-live", type=count_option, help="programs at a time (default: MAX_WORKERS, or 1.5 per core)")
    add("--memory-bytes", type=count_option, help="what calls may take together (default: 3/4 of the machine)")
    add("--max-calls", type=count_option, default=65_536, help="calls in flight before 429 (default: %(default)s)")
    add("--max-sessions", type=count_option, default=4096, help="sessions held (default: %(default)s)")
    add("--session-lease-s", type=seconds_option, default=1800.0, help="idle time of a session (default: %(default)s)")
    add("--max-wall-s", type=seconds_option, default=3600.0, help="longest wall_s of a call (default: %(default)s)")
    add(
        "--file-bytes",
        type=count_option,
        default=DEFAULT_LIMITS.file_bytes,
        help="size of a file of a program that asks for no other limit (default: %(default)s)",
    )
    add(
        "--files",
        type=count_option,
        default=DEFAULT_LIMITS.files,
        help="files at a time of a program that asks for no other limit (default: %(default)s)",
    )
    add("--max-body-bytes", type=count_option, default=64 << 20, help="largest request (default: %(default)s)")
    add(
        "--drain-s",
        type=seconds_option,
        default=30.0,
        help="time for calls to end after SIGTERM (default: %(default)s)",
    )
    add(
        "--allow-shared-user",
        action="store_true",
        help="serve as root even where programs cannot have a user of their own",
    )
    parser.set_defaults(run=_run_serve)


def add_flavour_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--flavour-file",
        metavar="FILE",
        help="flavours of your own, warm as well: TOML tables [flavour.NAME] with imports and environment",
    )


def _run_serve(options: argparse.Namespace) -> int:
    from rocstar.sandbox.service.serve import run

    return run(options)


MCP_DESCRIPTION = """Serve the sandbox to programs that speak the Model Context Protocol: over standard input
and output, or with --http over HTTP, at /mcp. Tools: run_python, run_cell, write_file, read_file,
close_session. ROCSTAR_SANDBOX_TOKEN is the token, unless --token-file gives others."""


def add_mcp_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "serve the sandbox's tools by the Model Context Protocol"
    parser = verbs.add_parser("mcp", help=summary, description=MCP_DESCRIPTION)
    add = parser.add_argument
    add("--http", action="store_true", help="streamable HTTP instead of standard input and output")
    add_listening_options(parser.add_argument_group("with --http"), 8089)
    add(
        "--flavours",
        default=",".join(name for name in offered_flavours() if name != "cpp"),
        metavar="A,B",
        help="interpreters kept warm (default: %(default)s); a call gets one by its imports",
    )
    add_flavour_file(parser)
    add("--max-sessions", type=int, default=64, help="sessions held (default: %(default)s)")
    add("--allow-shared-user", action="store_true", help="as of `rocstar sandbox serve`")
    parser.set_defaults(run=_run_mcp)


def _run_mcp(options: argparse.Namespace) -> int:
    if missing := missing_extra_message("rocstar sandbox mcp", "mcp"):
        raise ValueError(missing)
    from rocstar.sandbox.service.model_context.server import run

    return run(options)
