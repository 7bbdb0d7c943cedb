"""Tasks that are questions of evaluation sets are found, and boilerplate is no evidence."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.cli import main
from rocstar.train.data import check as check_module
from rocstar.train.data.check import check_tasks
from rocstar.train.data.grams import LONG, DistinctCounts
from rocstar.train.data.overlap import BOILERPLATE, Check, EvalQuestion, OverlapCheck, PaperCheck, TaskVerdict
from rocstar.train.data.words import conversation_key, masked, numbers_in, words_of
from tests.fakes.json_lines import read_lines, write_lines

TAIL = "The answer is a fraction $m/n$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
GARDEN = (
    "A gardener plants $12$ tulips along a straight path so that neighbouring bulbs stand $40$ centimetres "
    "apart, and "
    "waters the first one twice as long as each of the others. How many minutes does the watering of one "
    "bed take?"
)
STORY = "The masons of the northern quarry bring a stone for each arch that the old town builds over its brook."
SHORT = "What is $17$ percent of $350$?"
MIDDLE = "Two trains leave Ulm at noon and meet a cyclist near Biberach; who rode for three hours?"
QUESTIONS = [EvalQuestion(file="set.jsonl", id=str(k), text=text) for k, text in enumerate((GARDEN, SHORT, MIDDLE))]


def judged_by(check: Check, texts: list[str]) -> list[TaskVerdict]:
    found = [check.meet(text) for text in texts]
    for met in found:
        check.count(met)
    check.close()
    return [check.judge(met) for met in found]


def judged(texts: list[str], questions: list[EvalQuestion] = QUESTIONS) -> list[TaskVerdict]:
    return judged_by(OverlapCheck(questions), texts)


def level(text: str) -> str:
    (found,) = judged([text])
    return found.level


def test_copies_are_found_however_they_are_set() -> None:
    for text in (GARDEN, SHORT, MIDDLE):
        assert level(text) == "duplicate"
        assert level(text.replace(" ", "  \n ").upper()) == "duplicate"
        assert level(text.replace("$", "")) == level(text.replace("$1", "\\(1")) == "duplicate"
        assert level(f"Solve this.\n\n**{text}**\n\nThink step by step.") == "duplicate"
    assert level("A fullwidth ＡＢＣ") == "clean"


def test_one_changed_word_hides_nothing() -> None:
    for text in (GARDEN, MIDDLE):
        words = text.split()
        for k in range(len(words)):
            for changed in ([*words[:k], "somewhere", *words[k + 1 :]], [*words[:k], *words[k + 1 :]]):
                assert level(" ".join(changed)) in ("duplicate", "near"), changed


def test_other_numbers_are_a_twin() -> None:
    assert level(GARDEN.replace("12", "30").replace("40", "25")) == "twin"
    assert level(SHORT.replace("17", "8").replace("350", "200")) == "twin"
    assert level(GARDEN.replace("12", "30")) == "twin", "one of two numbers is another"


def test_another_problem_is_clean() -> None:
    for text in ("A gardener plants roses.", "How many minutes does it take?", "What is 17 plus 350?", ""):
        assert level(text) == "clean"
    longer = f"{SHORT} is what {'the teacher of a far too long story asked ' * 3}before anything else happened"
    assert level(longer) == "near", "a tiny question is a part of much"


def test_evidence_names_the_question_and_what_is_shared() -> None:
    (found,) = judged([GARDEN.replace("straight", "winding")])
    assert (found.level, found.question, found.rule) == ("duplicate", 0, "coverage")
    assert "path so that neighbouring bulbs stand 40 centimetres" in found.shared and 0.7 < found.score < 1


def other_problems(count: int) -> list[str]:
    rng = random.Random(0)
    nouns = ["kettle", "violin", "harbour", "ledger", "meadow", "chimney", "lantern", "cellar", "orchard"]
    return [f"The {rng.choice(nouns)} and the {rng.choice(nouns)} number {k} differ. {STORY}" for k in range(count)]


def test_what_many_problems_say_is_no_evidence() -> None:
    questions = [EvalQuestion(file="set.jsonl", id="0", text=f"A coin is tossed until heads come up twice. {STORY}")]
    assert {found.level for found in judged(other_problems(BOILERPLATE), questions)} == {"duplicate"}
    assert {found.level for found in judged(other_problems(BOILERPLATE + 1), questions)} == {"clean"}


def test_a_copy_that_is_there_a_hundred_times_is_no_boilerplate() -> None:
    assert {found.level for found in judged([f"Well: {GARDEN}"] * 100)} == {"duplicate"}
    assert {found.level for found in judged([SHORT] * 100)} == {"duplicate"}


@given(st.randoms(use_true_random=False))
def test_the_order_of_problems_does_not_matter(rng: random.Random) -> None:
    texts = [*other_problems(8), GARDEN, SHORT, GARDEN.replace("12", "30"), MIDDLE.replace("noon", "dawn")]
    order = list(range(len(texts)))
    rng.shuffle(order)
    found = judged([texts[k] for k in order])
    assert [found[order.index(k)] for k in range(len(texts))] == judged(texts)


@given(st.text())
def test_any_text_has_words(text: str) -> None:
    words = words_of(text)
    assert len(masked(words)) == len(words) and not any(word.isspace() for word in words)
    assert numbers_in(words) is not None and words_of(" ".join(words)) is not None


@given(st.text(st.characters(codec="ascii")))
def test_words_of_ascii_are_those_of_any_text(text: str) -> None:
    assert words_of(f"{text} \N{GREEK SMALL LETTER ETA}") == [*words_of(text), "\N{GREEK SMALL LETTER ETA}"]


def test_words_are_those_of_any_typesetting() -> None:
    assert words_of(r"\(\dfrac{1}{2}\) of $\triangle ABC$") == words_of(r"$\frac 1 2$ of \[ △ABC \]")
    assert words_of(r"\left( x_1 \geq 2\pi \right)") == words_of("(x1≥2π)") == ["x", "1", "2", "pi"]
    assert words_of("三角形ABC") == ["三", "角", "形", "abc"]
    assert words_of("John's") == words_of("John’s") == ["johns"]


def test_the_papers_rule_takes_any_eight_words() -> None:
    texts = [GARDEN, SHORT, f"Now: {' '.join(GARDEN.split()[:8])}", f"x {TAIL}"]
    found = [verdict.level for verdict in judged_by(PaperCheck(QUESTIONS), texts)]
    assert found == ["duplicate", "clean", "duplicate", "clean"]
    assert len(words_of(SHORT)) < 8 < len(words_of(MIDDLE)) < LONG <= len(words_of(GARDEN))


def test_the_command_writes_a_row_per_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin = GARDEN.replace("12", "30").replace("40", "25")
    tasks: list[dict[str, object]] = [
        {"id": "a", "problem": GARDEN},
        {"id": 7, "problem": "Nothing of the kind."},
        {"prompt": [{"role": "user", "content": twin}], "answer": "1"},
    ]
    source = write_lines(tmp_path / "tasks.jsonl", tasks)
    one = write_lines(tmp_path / "one.jsonl", [{"id": "q", "question": GARDEN}])
    two = write_lines(tmp_path / "two.jsonl", [{"problem": SHORT}])
    out = tmp_path / "out.jsonl"
    command = ["data", "check", source, "--against", one, "--against", two, "--out", str(out)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["levels"] == {"duplicate": 1, "near": 0, "twin": 1, "clean": 1}
    assert found["sets"] == {"one.jsonl": {"duplicate": 1, "twin": 1}}
    rows = read_lines(out)
    assert [(row["id"], row["level"]) for row in rows[:2]] == [("a", "duplicate"), (7, "clean")]
    assert rows[2]["level"] == "twin" and rows[2]["against"] == {"file": "one.jsonl", "id": "q"}
    first = out.read_bytes()
    assert main(command) == 2 and "exists" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0 and out.read_bytes() == first
    assert "1 of 3" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_lines(tmp_path / "good.jsonl", [{"problem": GARDEN}])
    bad = write_lines(tmp_path / "bad.jsonl", [{"text": GARDEN}])
    empty = write_lines(tmp_path / "empty.jsonl", [])
    out = f"--out={tmp_path / 'out.jsonl'}"
    for tasks, against, words in (
        (bad, good, "no problem in 'question'"),
        (good, empty, "--against has no question"),
        (empty, good, "has no task"),
        (str(tmp_path / "none.jsonl"), good, "does not exist"),
    ):
        assert main(["data", "check", tasks, "--against", against, out]) == 2
        assert words in capsys.readouterr().err
    assert main(["data", "check", bad, "--against", bad, out, "--field=text", "--mode=paper"]) == 0
    names = " ".join(sorted(path.name for path in tmp_path.iterdir()))
    assert names == "bad.jsonl empty.jsonl good.jsonl out.jsonl"


def check_inputs(folder: Path) -> tuple[str, str]:
    texts = [*other_problems(8), GARDEN, SHORT, GARDEN.replace("12", "30"), MIDDLE.replace("noon", "dawn")]
    tasks = write_lines(folder / "tasks.jsonl", [{"id": k, "problem": text} for k, text in enumerate(texts)])
    rows = [{"id": one.id, "problem": one.text} for one in QUESTIONS]
    return tasks, write_lines(folder / "set.jsonl", rows)


def test_a_killed_check_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed behind each commit in turn; what is there is not looked at again."""
    tasks, against = check_inputs(tmp_path)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    check_tasks(tasks, [against], whole, force=False)
    monkeypatch.setattr(check_module, "COMMITTED_ROWS", 2)
    real_commit, real_meet, met = check_module._commit, OverlapCheck.meet, list[str]()

    def commit(*arguments: Any) -> None:
        real_commit(*arguments)
        raise KeyboardInterrupt

    def meet(check: OverlapCheck, text: str, answer: str = "") -> bytes:
        met.append(text)
        return real_meet(check, text, answer)

    monkeypatch.setattr(OverlapCheck, "meet", meet)
    monkeypatch.setattr(check_module, "_commit", commit)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            check_tasks(tasks, [against], out, force=False)
        assert not out.exists() and (tmp_path / "out.jsonl.work").exists()
    monkeypatch.setattr(check_module, "_commit", real_commit)
    check_tasks(tasks, [against], out, force=False)
    assert out.read_bytes() == whole.read_bytes()
    assert len(met) == 12, "each task was looked at once"
    names = " ".join(sorted(path.name for path in tmp_path.iterdir()))
    assert names == "out.jsonl set.jsonl tasks.jsonl whole.jsonl"


@pytest.mark.parametrize("change", ["task", "fewer", "set"])
def test_what_changed_since_a_kill_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    tasks, against = check_inputs(tmp_path)
    out, fresh = tmp_path / "out.jsonl", tmp_path / "fresh.jsonl"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_module, "_write", stop)
    with pytest.raises(KeyboardInterrupt):
        check_tasks(tasks, [against], out, force=False)
    monkeypatch.undo()
    lines = Path(tasks).read_text().splitlines()
    if change == "task":
        lines[9] = json.dumps({"id": 9, "problem": "Another one."})
    elif change == "fewer":
        lines = lines[:10]
    else:
        against = write_lines(tmp_path / "set.jsonl", [{"problem": GARDEN}])
    Path(tasks).write_text("\n".join(lines) + "\n")
    check_tasks(tasks, [against], out, force=False)
    check_tasks(tasks, [against], fresh, force=False)
    assert out.read_bytes() == fresh.read_bytes() and len(out.read_text().splitlines()) == len(lines)


def key_of(question: str, context: Sequence[Mapping[str, str]] = ()) -> bytes:
    return conversation_key([*context, {"role": "user", "content": question}])


SAME = [
    ("What is $3 + 4$?", "what is 3+4"),
    ("Let \\(x \\leq 2\\).", "Let $x ≤ 2$"),
    ("Compute $\\dfrac{1}{2} \\cdot 6$.", "Compute \\[ \\frac{1}{2} \\times 6 \\]"),
    ("John's age", "John’s  age"),
    ("**Find** $a−b$", "**Find** $a-b$."),
]
OTHER = [
    ("What is $3 + 4$?", "What is $3 - 4$?"),
    ("$x \\leq 2$", "$x \\geq 2$"),
    ("Find $f(x)$.", "Find $f'(x)$."),
    ("Find $5!$", "Find $5$"),
    ("Is 2.5 whole?", "Is 25 whole?"),
    ("[asy] draw(a); [/asy] Find $x$.", "[asy] draw(b); [/asy] Find $x$."),
]


def test_another_sign_makes_another_problem_and_typesetting_does_not() -> None:
    assert not [pair for pair in SAME if key_of(pair[0]) != key_of(pair[1])]
    assert not [pair for pair in OTHER if key_of(pair[0]) == key_of(pair[1])]


def test_earlier_turns_and_calls_belong_to_a_question_and_system_messages_do_not() -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert key_of("And now?", before) != key_of("And now?")
    assert key_of("And now?", [{"role": "system", "content": "Be brief."}]) == key_of("And now?")

    def called(arguments: object) -> bytes:
        call = {"function": {"name": "f", "arguments": arguments}}
        return conversation_key([{"role": "assistant", "content": "", "tool_calls": [call]}])

    assert called({"a": 1, "b": 2}) == called('{"b": 2,  "a": 1}') != called({"a": 1})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(1, 4))
def test_distinct_numbers_are_counted_up_to_a_limit(added: list[tuple[int, int]], most: int) -> None:
    counts = DistinctCounts(4, most=most)
    for place, number in added:
        counts.add([place], number)
    for place in range(4):
        assert counts.count(place) == min(most, len({number for p, number in added if p == place}))
