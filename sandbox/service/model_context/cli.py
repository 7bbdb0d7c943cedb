"""The command line of `rocstar sandbox mcp`. Imports no server: `--help` stays quick."""

import argparse

from rocstar.sandbox.extras import missing_extra_message, offered_flavours
from rocstar.sandbox.loopback.listening import add_listening_options
from rocstar.sandbox.service.parser import add_flavour_file

DESCRIPTION = """Serve the sandbox to programs that speak the Model Context Protocol: over standard input and
output, or with --http over HTTP, at /mcp. Tools: run_python, run_cell, write_file, read_file, close_session.
ROCSTAR_SANDBOX_TOKEN is the token, unless --token-file gives others."""


def add_mcp_parser(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    told = "serve the sandbox's tools by the Model Context Protocol"
    parser = verbs.add_parser("mcp", help=told, description=DESCRIPTION)
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
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if missing := missing_extra_message("rocstar sandbox mcp", "mcp"):
        raise ValueError(missing)
    from rocstar.sandbox.service.model_context.server import run

    return run(options)
