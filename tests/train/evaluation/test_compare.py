"""`rocstar compare`: every form of an evaluation on disk, and one line for what cannot be compared."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.train.cli import main
from rocstar.train.evaluation.compare import compare, compare_paths, format_comparison
from rocstar.train.evaluation.stored_evaluations import StoredEvaluation, attempt_score, find_evaluations
from rocstar.train.recipe.errors import ConfigError

Attempts = Mapping[str, Sequence[float | bool | None]]
A: Attempts = {"q1": [True, False], "q2": [False, False], "q3": [True, True], "q4": [True, False]}
B: Attempts = {"q4": [True, True], "q2": [False, True], "q3": [True, True], "q1": [True, True]}


def results(path: Path, **sets: Attempts) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {n: {"k": 2, "questions": {q: {"attempts": a} for q, a in qs.items()}} for n, qs in sets.items()}
    path.write_text(json.dumps({"v": 1, "sets": found}))
    return path


def stored(**sets: Attempts) -> StoredEvaluation:
    found = {
        n: {q: tuple(None if s is None else float(s) for s in a) for q, a in qs.items()} for n, qs in sets.items()
    }
    return StoredEvaluation(path=Path("x"), step=None, sets=found)


FORMS = ("csv", "jsonl", "scores", "run", "checkpoint", "folder", "file", "evaluation of a run")


def places(tmp_path: Path) -> dict[str, Path]:
    """The same evaluation, B, in every form."""
    csv, lines, scores = tmp_path / "b.csv", tmp_path / "b.jsonl", tmp_path / "scores.csv"
    csv.write_text("set,question,attempts\n" + "".join(f"heldout,{q},{a[0]:d} {a[1]:d}\n" for q, a in B.items()))
    lines.write_text("".join(json.dumps({"question": q, "attempts": a}) + "\n\n" for q, a in B.items()))
    scores.write_text("question,score\r\n" + "".join(f"{q},{sum(a) / 2}\r\n" for q, a in B.items()))  # type: ignore[arg-type]
    results(tmp_path / "run/evaluations/step_000004/results.json", heldout=A)
    results(tmp_path / "run/evaluations/step_000010/results.json", heldout=B)
    checkpoint = tmp_path / "run/checkpoints/step_10"
    checkpoint.mkdir(parents=True)
    return {
        "csv": csv,
        "jsonl": lines,
        "scores": scores,
        "run": tmp_path / "run",
        "evaluation of a run": tmp_path / "run/evaluations/step_000010",
        "checkpoint": checkpoint,
        "folder": results(tmp_path / "folder/results.json", heldout=B).parent,
        "file": results(tmp_path / "file.json", heldout=B),
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_comparison(tmp_path: Path, form: str) -> None:
    a = results(tmp_path / "a/results.json", aime24=A)
    found = compare_paths(a, places(tmp_path)[form])
    [only] = found.sets
    assert (only.name, only.a, only.b) == ("aime24", 0.5, 0.875)
    assert only.paired.difference == found.overall.difference == 0.375
    assert only.paired.p == pytest.approx(0.25) and only.p_holm == only.paired.p


def test_two_runs_are_compared_at_their_last_common_step(tmp_path: Path) -> None:
    for run, steps in (("a", (0, 10, 20)), ("b", (10, 30))):
        for step in steps:
            results(tmp_path / run / f"evaluations/step_{step:06d}/results.json", heldout=B if step == 10 else A)
    a, b = tmp_path / "a", tmp_path / "b"
    found = compare_paths(a, b)
    assert (found.a.step, found.b.step, found.overall.difference) == (10, 10, 0.0)
    other = compare_paths(a, results(tmp_path / "c.json", heldout=B))
    assert (other.a.step, other.b.step, other.overall.difference) == (20, None, 0.375)
    with pytest.raises(ConfigError, match=r"was not evaluated at step 20; it was at 10, 30"):
        compare_paths(a, b, step=20)
    with pytest.raises(ConfigError, match=r"--step 3 needs a run"):
        compare_paths(tmp_path / "c.json", tmp_path / "c.json", step=3)


def test_other_questions_are_refused_by_name() -> None:
    more: Attempts = {**A, **{f"x{n}": [True] for n in range(7)}}
    with pytest.raises(
        ConfigError, match=r"7 \('x0', 'x1', 'x2', 'x3', 'x4', \.\.\.\) only in A, none only in B, 4 in both"
    ):
        compare(stored(s=more), stored(s=B))
    with pytest.raises(ConfigError, match=r"none only in A, 1 \('q9'\) only in B"):
        compare(stored(s=A), stored(s=dict(B) | {"q9": [True]}))


def test_other_sets_are_refused_unless_chosen() -> None:
    a, b = stored(one=A, two=A), stored(one=B, three=B)
    with pytest.raises(ConfigError, match=r"1 \('two'\) only in A, 1 \('three'\) only in B; .*--set among one"):
        compare(a, b)
    assert [each.name for each in compare(a, b, only=["one"]).sets] == ["one"]
    with pytest.raises(ConfigError, match=r"--set 'two' is not in 'x'; its sets are one, three"):
        compare(a, b, only=["two"])


def test_failed_attempts_are_left_out_and_counted_as_wrong() -> None:
    a: Attempts = {"q1": [None, None], "q2": [True, None], "q3": [False, False]}
    b: Attempts = {"q1": [True, True], "q2": [True, True], "q3": [True, False]}
    [found] = compare(stored(s=a), stored(s=b)).sets
    assert (found.failed, found.unscored, found.paired.num_questions) == ((3, 0), 1, 2)
    assert (found.a, found.b, found.paired.difference) == (0.5, 0.75, 0.25)
    assert found.as_wrong.num_questions == 3 and found.as_wrong.difference == pytest.approx(2 / 3)
    text = format_comparison(compare(stored(s=a), stored(s=b)))
    assert "3 attempts of A and 0 of B failed and are excluded" in text and "as wrong: +66.7" in text
    with pytest.raises(ConfigError, match="nothing can be compared"):
        compare(stored(s={"q": [None]}), stored(s={"q": [True]}))


def test_json_has_difference_interval_and_p_for_each_set_and_over_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = results(tmp_path / "a.json", one=A, two=B), results(tmp_path / "b.json", one=B, two=B)
    assert main(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["set"] for each in found["sets"]] == ["one", "two"]
    for each in (found, *found["sets"]):
        assert each["interval"][0] <= each["difference"] <= each["interval"][1]
        assert 0 < each["p"] <= 1 and each["detectable"] > 0
    assert found["difference"] == 0.1875 and found["sets"][0]["p_holm"] == 2 * found["sets"][0]["p"]


def test_the_table_has_the_detectable_difference_beside_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = results(tmp_path / "a.json", one=A, two=A), results(tmp_path / "b.json", one=B, two=B)
    assert main(["compare", str(a), str(b)]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("set "))
    assert head.split()[-1] == "detectable"
    rows = [line for line in lines if line.startswith(("one", "two", "all sets"))]
    assert len(rows) == 3 and all("+37.5" in row for row in rows)


BAD: list[tuple[str, Any, str]] = [
    ("a.txt", "", "ends in .json, .csv or .jsonl"),
    ("a.json", "[1]", "is damaged: Expected `object`"),
    ("a.json", "{", "is damaged: Input data was truncated"),
    ("a.json", "{}", "missing required field `sets`"),
    ("a.json", '{"sets": {}}', "no question"),
    ("a.json", '{"sets": {"s": 1}}', "Expected `object`, got `int` - at `$.sets[...]`"),
    ("a.json", '{"sets": {"s": {"k": 1}}}', "no question in 's'"),
    ("a.json", '{"sets": {"s": {"k": 1, "questions": {"q": {}}}}}', "missing required field `attempts`"),
    ("a.json", '{"sets": {"s": {"k": 1, "questions": {"q": {"attempts": [2]}}}}}', "2.0 is not a score"),
    ("a.csv", "", "has no row"),
    ("a.csv", "id,score\n1,1\n", "the columns are id, score, and question is needed"),
    ("a.csv", "question,score\nq,1\nq,0\n", "line 3: question 'q' of 'heldout' has two rows"),
    ("a.csv", "question,score\nq,\n", "neither score nor attempts"),
    ("a.csv", "question,score\nq,71.5\n", "'71.5' is not a score"),
    ("a.csv", b"question,score\n\xff,1\n", "is not UTF-8"),
    ("a.jsonl", "{\n", "line 1 is not JSON"),
    ("a.jsonl", "[]\n", "not a JSON object"),
    ("a.jsonl", '{"question": "q", "attempts": {"a": 1}}\n', "is not a list"),
    ("a.jsonl", '{"question": "q", "score": NaN}\n', "nan is not a score"),
]


@pytest.mark.parametrize(("name", "content", "complaint"), BAD)
def test_bad_input_is_one_line_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, complaint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["compare", str(path), str(path)]) == 2
    printed = capsys.readouterr().err
    assert complaint in printed and printed.count("\n") == 1


@pytest.mark.parametrize("place", ["nowhere", "."])
def test_a_place_without_an_evaluation_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    assert main(["compare", str(tmp_path / place), str(tmp_path)]) == 2
    assert str(tmp_path / place) in capsys.readouterr().err


def test_a_checkpoint_that_was_not_evaluated_is_named(tmp_path: Path) -> None:
    results(tmp_path / "run/evaluations/step_000010/results.json", heldout=A)
    (tmp_path / "run/checkpoints/step_20").mkdir(parents=True)
    with pytest.raises(ConfigError, match="was not evaluated at step 20"):
        find_evaluations(tmp_path / "run/checkpoints/step_20")


@given(st.none() | st.booleans() | st.text(max_size=6) | st.floats() | st.integers() | st.lists(st.integers()))
def test_a_score_is_a_share_or_a_clear_error(value: object) -> None:
    with contextlib.suppress(ConfigError):
        score = attempt_score(value, "here")
        assert score is None or 0 <= score <= 1
