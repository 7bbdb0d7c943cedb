"""The words that the policy reads: of every status, in each style, and the cut."""

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocstar.engine.tools.results import CUT_MARKER, MAX_TOKEN_CHARS, cut_middle, result_text
from rocstar.engine.types import ToolResult
from rocstar.sandbox.types import ExecResult
from tests.fakes import sandbox as fake
from tests.fakes.scripted_policy import ByteTokenizer

from ..tool_calls import box, call, execute

TRACEBACK = """Traceback (most recent call last):
  File "<cell>", line 3, in <module>
    b=a/0
      ~^~
ZeroDivisionError: division by zero
"""
RESULTS = {
    "stdout": fake.ok("2\n"),
    "value": fake.ok(value="42"),
    "both": fake.ok("a\n", value="42"),
    "silent": fake.ok(),
    "warning": fake.ok(stderr="<cell>:1: UserWarning: w\n"),
    "exception": fake.error(TRACEBACK, stdout="before\n"),
    "exit": fake.error(exit_code=3),
    "segfault": fake.signaled(11),
    "timeout": fake.timeout(),
    "memory": fake.memory_limit(),
    "output": fake.output_limit("xxx"),
    "denied": fake.denied(),
}
BRIEF = {
    "stdout": "2",
    "value": "42",
    "both": "a\n42",
    "silent": "(no output)",
    "warning": "(no output)",
    "exception": "ZeroDivisionError: division by zero",
    "exit": "exit code 3",
    "segfault": "killed by signal 11",
    "timeout": "TimeoutError: the program exceeded its time limit",
    "memory": "MemoryError: the program exceeded its memory limit",
    "output": "OutputLimitError: the program printed too much",
    "denied": "PermissionError: the program used an operation that is not allowed",
}
PLAIN = BRIEF | {"exception": "before\n" + TRACEBACK.rstrip("\n"), "output": "xxx\n" + BRIEF["output"]}


@pytest.mark.parametrize("case", RESULTS)
async def test_every_status_has_its_words_and_its_error_flag(case: str) -> None:
    result = RESULTS[case]
    assert result_text(result, "brief") == BRIEF[case]
    assert result_text(result, "plain") == PLAIN[case]
    (told,) = await execute(box({"p": result}), call("p"))
    assert told == ToolResult(status=result.status.value, is_error=result.exit_code != 0, text=BRIEF[case])


def test_every_status_is_covered() -> None:
    assert {r.status for r in RESULTS.values()} == set(type(fake.ok().status))


@pytest.mark.parametrize("style", ["brief", "plain"])
@pytest.mark.parametrize("case", RESULTS)
def test_no_time_in_what_the_policy_reads(style: Any, case: str) -> None:
    slow = dataclasses.replace(RESULTS[case], wall_s=123.456, cpu_s=123.456)
    assert result_text(slow, style) == result_text(RESULTS[case], style)


def seconds(result: ExecResult, wall_s: float) -> ExecResult:
    return dataclasses.replace(result, wall_s=wall_s)


def trace(line: int, source: str, error: str) -> str:
    frame = f'  File "<cell>", line {line}, in <module>\n    {source}\n'
    return f"Traceback (most recent call last):\n{frame}{error}\n"


SYNTAX = '  File "<cell>", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
NESTED = (
    'Traceback (most recent call last):\n  File "<cell>", line 9, in <module>\n    f()\n'
    '  File "<cell>", line 2, in f\n    raise ValueError("a\\nb: c")\nValueError: a\nb: c\n'
)
RSTAR2 = [
    (fake.ok("2\n"), 0.01, "Tool call success\nstdout: 2\n\nexecution time: 0.01s"),
    (fake.ok(value="42"), 0.01, "Tool call success\nstdout: 42\n\nexecution time: 0.01s"),
    (fake.ok(), 0.01, "Tool call success\nexecution time: 0.01s"),
    (
        fake.ok(stderr="<cell>:1: UserWarning: w\n"),
        0.01,
        "Tool call success\nstderr: <string>:1: UserWarning: w\n\nexecution time: 0.01s",
    ),
    (
        fake.error(TRACEBACK),
        0.03,
        "Tool call failure\nreason: \nstderr: ZeroDivisionError at line 3: division by zero\n  b=a/0\n\n"
        "execution time: 0.03s",
    ),
    (
        fake.error(SYNTAX),
        0.03,
        "Tool call failure\nreason: \nstderr: SyntaxError at line 1: invalid syntax (<unknown>, line 1)\n"
        "  def f(:\n\nexecution time: 0.03s",
    ),
    (
        fake.timeout(),
        4.02,
        "Tool call failure\nreason: worker_timeout\nstdout: Suicide from timeout.\n\nexecution time: 4.02s",
    ),
    (
        fake.memory_limit(trace(1, "x=[0]*(10**9)", "MemoryError")),
        0.03,
        "Tool call failure\nreason: \nstderr: MemoryError at line 1: \n  x=[0]*(10**9)\n\nexecution time: 0.03s",
    ),
    (
        fake.error(trace(1, "input()", "EOFError: EOF when reading a line")),
        0.03,
        "Tool call failure\nreason: \nstderr: EOFError at line 1: EOF when reading a line\n  input()\n\n"
        "execution time: 0.03s",
    ),
    (fake.error(stdout="x\n"), 0.07, "Tool call failure\nreason: \nstdout: x\n\nexecution time: 0.07s"),
    (fake.signaled(9), 0.07, "Tool call failure\nreason: \nexecution time: 0.07s"),
    (
        fake.error(NESTED),
        0.03,
        "Tool call failure\nreason: \nstderr: ValueError at line 2: a\nb: c\n"
        '  raise ValueError("a\\nb: c")\n\nexecution time: 0.03s',
    ),
    (
        fake.error(trace(4, "json.loads('')", "json.decoder.JSONDecodeError: Expecting value: line 1")),
        0.03,
        "Tool call failure\nreason: \nstderr: JSONDecodeError at line 4: Expecting value: line 1\n"
        "  json.loads('')\n\nexecution time: 0.03s",
    ),
    (fake.error("bye\n"), 0.03, "Tool call failure\nreason: \nstderr: bye\n\nexecution time: 0.03s"),
    (
        fake.error('Traceback:\n  File "<cell>", line 1, in <module>\n'),
        0.0,
        'Tool call failure\nreason: \nstderr: Traceback:\n  File "<cell>", line 1, in <module>\n\n'
        "execution time: 0.00s",
    ),
]


@pytest.mark.parametrize(("result", "wall_s", "expected"), RSTAR2)
def test_rstar2_strings_are_the_originals(result: ExecResult, wall_s: float, expected: str) -> None:
    assert result_text(seconds(result, wall_s), "rstar2") == expected


INTERRUPTED = (
    'Traceback (most recent call last):\n  File "<cell 4>", line 2, in <module>\n    while True: pass\n'
    "KeyboardInterrupt\n"
)


def test_a_cell_that_interrupts_itself_has_its_traceback() -> None:
    """The strings of other cells: see test_notebook.py, with real ones."""
    raised = INTERRUPTED.replace("while True: pass", "raise KeyboardInterrupt")
    assert result_text(seconds(fake.error(raised), 0.0), "rstar2") == (
        "Tool call failure\nreason: \nstderr: KeyboardInterrupt at line 2: \n  raise KeyboardInterrupt\n\n"
        "execution time: 0.00s"
    )


# ---- the cut ----

BYTES = ByteTokenizer()
MERGED = ByteTokenizer(corpus=["the answer is 42 and the sum of it\n" * 9], vocab_size=330)


@pytest.mark.parametrize("tokenizer", [BYTES, MERGED])
@given(
    text=st.lists(st.sampled_from(["the sum ", "42", "\n", "é", "😀", "<|im_end|>", "x"]), max_size=60).map("".join),
    max_tokens=st.integers(0, 60),
)
@example(text="😀" * 20, max_tokens=40)  # four bytes each: more tokens than characters
def test_cut_keeps_head_and_tail_around_one_marker(tokenizer: ByteTokenizer, text: str, max_tokens: int) -> None:
    ids = tokenizer.encode(text)
    cut = cut_middle(text, tokenizer, max_tokens)
    if len(ids) <= max_tokens:
        assert cut == text
        return
    marker = len(tokenizer.encode(CUT_MARKER))
    room = max(0, max_tokens - marker)
    assert cut.count(CUT_MARKER) == 1
    head, _, tail = cut.partition(CUT_MARKER)
    head, tail = head.rstrip("\ufffd"), tail.lstrip("\ufffd")  # a cut inside a character
    assert text.startswith(head) and text.endswith(tail)
    # "About": a character cut in two is shown as U+FFFD, three bytes for at most three lost on either side.
    assert len(tokenizer.encode(cut)) <= max(max_tokens, marker) + 2 * 9
    kept = len(tokenizer.encode(head)) + len(tokenizer.encode(tail))
    assert kept >= room - 2 * 3


def test_cut_of_megabytes_encodes_only_its_ends() -> None:
    class Counted(ByteTokenizer):
        seen = 0

        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            self.seen += len(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

    tokenizer = Counted()
    cut = cut_middle("a" * 500_000 + "b" * 500_000, tokenizer, 100)
    assert cut == "a" * 42 + CUT_MARKER + "b" * 41
    assert tokenizer.seen <= 2 * 100 * MAX_TOKEN_CHARS + len(CUT_MARKER)


def test_short_text_is_not_even_encoded() -> None:
    assert cut_middle("ab", None, 8) == "ab"  # type: ignore[arg-type]


@pytest.mark.parametrize("style", ["brief", "plain"])
@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("<generator object <genexpr> at 0x7f1f77c37d40>", "<generator object <genexpr> at 0x...>"),
        ("[<A object at 0x55d0aa>, <A object at 0x55d0ab>]", "[<A object at 0x...>, <A object at 0x...>]"),
        ("0x7f1f77c37d40", "0x7f1f77c37d40"),
        ("found at 0x7f1f77c37d40", "found at 0x7f1f77c37d40"),
    ],
)
def test_addresses_are_not_told(style: Any, printed: str, told: str) -> None:
    """They are others in every run, and what the policy reads would be."""
    assert result_text(fake.ok(printed), style) == result_text(fake.ok(value=printed), style) == told
    error = fake.error(f"AttributeError: {printed}\n")
    assert result_text(error, style) == f"AttributeError: {told}"
    assert printed in result_text(fake.ok(printed), "rstar2")
