"""The verb `rocstar view`: the process that serves until Ctrl-C, or writes one file."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from rocstar.sandbox.http.listening import format_listen_error
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.run_directory import check_file, replace_text

if TYPE_CHECKING:
    from rocstar.train.reading.view.reader import RunReader
    from rocstar.train.reading.view.viewed_run import RunIndex

HOST, PORT = "127.0.0.1", 8089


def run(options: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, or export. ConfigError for a path or port that is not usable."""
    from rocstar.train.reading.view.reader import RunReader
    from rocstar.train.reading.view.viewed_run import RunIndex

    if options.port is not None and not 0 <= options.port < 65536:
        raise ConfigError(f"--port {options.port} is not a port; give 1 to 65535, or 0 for a free one")
    run_index = RunIndex(options.runs or [Path("runs")])
    reader = RunReader(run_index.runs, reveal=options.reveal)
    if options.export is not None:
        _export(reader, run_index, options.export)
        return 0
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(reader, options))
    return 0


def _export(reader: RunReader, run_index: RunIndex, file: Path) -> None:
    """Write the page of the one run that was named."""
    from rocstar.engine.progress.progress import format_bytes
    from rocstar.train.reading.view.document import now_as_text
    from rocstar.train.reading.view.export_page import MOST, export_page
    from rocstar.train.reading.view.reader import NothingThereError

    names = list(run_index.runs())
    if len(names) != 1:
        raise ConfigError(f"--export writes the page of one run, these are {len(names)}; name one of them")
    if file.suffix != ".html":
        raise ConfigError(f"--export {str(file)!r}: give a name that ends in .html")
    check_file(file, force=True, option="--export")
    collection = next(iter(run_index.runs()[names[0]].collections()), "")
    try:
        places = reader.sample(names[0], collection, MOST)
        text = export_page(reader, names[0], collection, places, made=now_as_text())
    except NothingThereError as error:
        raise ConfigError(f"nothing can be exported: {error}") from None
    replace_text(file, text)
    print(f"{file}: {format_bytes(len(text.encode()))}")


async def _serve(reader: RunReader, options: argparse.Namespace) -> None:
    from rocstar.train.reading.view.web import PageServer

    token = None if options.no_token else secrets.token_urlsafe(24)
    server, stop = PageServer(reader, token=token), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def ready(port: int) -> None:
        address = f"http://{HOST}:{port}/" + ("" if token is None else f"?token={token}")
        print(f"view: {address}  (Ctrl-C ends it)", flush=True)
        if options.open:
            webbrowser.open(address)

    wanted = PORT if options.port is None else options.port
    try:
        await server.serve(HOST, wanted, ready, stop)
    except OSError as error:
        if options.port is not None:
            raise ConfigError(format_listen_error(HOST, options.port, error)) from None
        await PageServer(reader, token=token).serve(HOST, 0, ready, stop)
