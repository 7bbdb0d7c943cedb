"""Where progress is shown: drawn on a terminal and gone at the end, a line when due elsewhere."""

import io
import threading

import pytest

from rocstar.engine.progress import status
from rocstar.engine.progress.progress import working
from rocstar.engine.progress.status import StatusLine

DEADLINE_S = 300.0


class Pipe(io.StringIO):
    """Can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        self._written.set()
        return written

    def wait_for(self, text: str) -> None:
        while text not in self.getvalue():
            assert self._written.wait(DEADLINE_S), f"{text!r} was never written"
            self._written.clear()


class Terminal(Pipe):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(status, "REFRESHES_PER_S", 100.0)
    return Terminal()


def test_a_terminal_shows_work_while_it_lasts(terminal: Terminal) -> None:
    with StatusLine(file=terminal) as shown, working("demonstrations", unit="rows", total=8) as work:
        work.done = 3
        terminal.wait_for("demonstrations: 3 of 8 rows")
        shown.note("a note stays")
        terminal.wait_for("a note stays\n")
    assert terminal.getvalue().endswith("\x1b[2K"), "what was drawn is wiped out"


def test_a_pipe_gets_nothing_of_short_work() -> None:
    out = io.StringIO()
    with StatusLine(file=out, clock=lambda: 0.0), working("demonstrations", unit="rows", total=8) as work:
        work.done = 3
    assert out.getvalue() == ""


def test_a_pipe_is_told_of_long_work_even_while_its_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOK_S", 0.001)
    out, now = Pipe(), [0.0]
    with StatusLine(file=out, clock=lambda: now[0]), working("loading the model in /big"):
        now[0] = 61.0
        out.wait_for("1m01s\n")  # no event loop runs here, as none does while weights are read
    assert out.getvalue() == "loading the model in /big: 1m01s\n"


def test_it_leaves_neither_thread_nor_board() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), StatusLine(file=io.StringIO()) as shown:
        raise KeyError
    assert threading.active_count() == before
    with working("later"):
        assert not shown.progress.works


def test_one_after_the_other_may_share_a_terminal(terminal: Terminal) -> None:
    for name in ("first", "second"):
        with StatusLine(file=terminal), working(name):
            terminal.wait_for(f"{name}: 0s")
