"""Tasks from every kind of source, and the mistakes a user makes with them."""

import gzip
import json
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.types import Task
from rocstar.train.recipe.data_config import DataConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import answer_text, load_tasks, reasoning_gym_tasks
from rocstar.train.tasks.numbers import read_number
from rocstar.train.tasks.rows import DATA_DIR_VARIABLE

from ...needs import modules

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(tmp_path: Path, rows: Sequence[object] = ROWS, **fields: Any) -> list[Task]:
    write_jsonl(tmp_path / "rows.jsonl", rows)
    return load_tasks(DataConfig(source="rows.jsonl", **fields), base=tmp_path)


def message_of(tmp_path: Path, rows: Sequence[object], **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, rows, **fields)
    return str(caught.value)


# ---------------------------------------------------------------- files


def test_rows_become_tasks_in_order(tmp_path: Path) -> None:
    tasks = load(tmp_path)
    assert [(task.question, task.answer, task.source) for task in tasks] == [
        ("1 + 1?", "2", "rows.jsonl"),
        ("2 + 2?", "4", "rows.jsonl"),
    ]


def test_ids_follow_content_not_position_and_equal_rows_stay_apart(tmp_path: Path) -> None:
    forward = {task.question: task.id for task in load(tmp_path)}
    assert {task.question: task.id for task in load(tmp_path, ROWS[::-1])} == forward
    doubled = load(tmp_path, [*ROWS, *ROWS])
    assert len({task.id for task in doubled}) == 4


def test_size_takes_the_first_rows(tmp_path: Path) -> None:
    assert [task.answer for task in load(tmp_path, size=1)] == ["2"]


def test_a_gzipped_file_and_blank_lines_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt", encoding="utf-8") as out:
        out.write(json.dumps(ROWS[0]) + "\n\n" + json.dumps(ROWS[1]))
    assert len(load_tasks(DataConfig(source="rows.jsonl.gz"), base=tmp_path)) == 2


def test_verl_rows_in_parquet_are_understood(tmp_path: Path) -> None:
    pa, parquet = modules("pyarrow", "pyarrow.parquet")
    row = {
        "data_source": "dapo",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "How many?"}],
        "reward_model": {"style": "rule", "ground_truth": "34"},
    }
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    config = DataConfig(source="rows.parquet", question="prompt", answer="reward_model.ground_truth")
    (task,) = load_tasks(config, base=tmp_path)
    assert (task.source, task.question, task.answer) == ("dapo", "How many?", "34")
    assert task.context == ({"role": "system", "content": "s"},)
    assert task.meta == {"reward_model": row["reward_model"]}
    load(tmp_path, [row], question="prompt", answer="reward_model.ground_truth")
    again = DataConfig(source="rows.jsonl", question="prompt", answer="reward_model.ground_truth")
    assert load_tasks(again, base=tmp_path) == [task], "JSONL and Parquet of one row give one task"


NUMBERS = [
    (0.00001, "0.00001"),
    (2.5e-7, "0.00000025"),
    (6.02e23, "602000000000000000000000"),
    (-1.5, "-1.5"),
    (3.0, "3"),
    (-0.0, "0"),
    (10**30, "1" + "0" * 30),
    (Decimal("1.50"), "1.5"),
    (Decimal("1E+3"), "1000"),
]


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_a_number_keeps_its_value_in_plain_notation(number: float | Decimal, text: str) -> None:
    assert answer_text(number, "answer", "row 1") == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_judge_reads_the_value_that_the_row_holds(number: float) -> None:
    read = read_number(answer_text(number, "answer", "row 1"))
    assert read is not None and read.value == Fraction(str(number))


@pytest.mark.parametrize("number", [math.nan, math.inf, Decimal("NaN"), True])
def test_what_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ConfigError, match=r"row 1.*finite number"):
        answer_text(number, "answer", "row 1")


def test_a_parquet_file_is_read_no_further_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, parquet = modules("pyarrow", "pyarrow.parquet")
    rows = [{"question": f"{k}?", "answer": str(k)} for k in range(5000)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read: list[int] = []
    iter_batches = parquet.ParquetFile.iter_batches

    def counting(file: Any, **options: Any) -> Any:
        for batch in iter_batches(file, **options):
            read.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counting)
    for fields in ({"size": 3}, {"limit": 3}):
        read.clear()
        tasks = load_tasks(DataConfig(source="rows.parquet", **fields), base=tmp_path)
        assert [task.answer for task in tasks] == ["0", "1", "2"] and sum(read) <= 1024
    read.clear()
    assert len(load_tasks(DataConfig(source="rows.parquet"), base=tmp_path)) == sum(read) == 5000


def test_a_limit_stops_the_reading_unless_sources_must_be_mixed(tmp_path: Path) -> None:
    """The rows behind the limit are not JSON: who reads them fails."""
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    path.write_text(path.read_text() + "no JSON\n")
    for fields in ({"size": 2}, {"limit": 2}, {"size": 5, "limit": 2}, {"size": 2, "limit": 5}):
        assert len(load_tasks(DataConfig(source="rows.jsonl", **fields), base=tmp_path)) == 2
    with pytest.raises(ConfigError, match="line 3 is not JSON"):
        load_tasks(DataConfig(source="rows.jsonl", limit=3), base=tmp_path)
    mixed = [{**row, "data_source": source} for row, source in zip([*ROWS, *ROWS], "aabb", strict=True)]
    assert len(load(tmp_path, mixed, limit=2)) == 4, "the caller mixes them, then cuts"
    assert len(load(tmp_path, mixed, limit=2, size=3)) == 3


# ---------------------------------------------------------------- messages, columns, ids

TURNS = [
    {"role": "system", "content": "You are a pirate. "},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"code": "1 + 1"}}]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": [{"type": "text", "text": "2, arr"}]},
    {"role": "user", "content": " and 2 + 2? "},
]


def test_messages_before_the_question_are_kept(tmp_path: Path) -> None:
    (task,) = load(tmp_path, [{"question": TURNS, "answer": "4"}])
    assert task.question == " and 2 + 2? "
    assert [(m["role"], m["content"]) for m in task.messages] == [
        ("system", "You are a pirate. "),
        ("user", "1 + 1?"),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "2, arr"),
        ("user", " and 2 + 2? "),
    ]
    function = {"name": "f", "arguments": {"code": "1 + 1"}}
    assert task.context[2]["tool_calls"] == [{"type": "function", "function": function}]
    (alone,) = load(tmp_path, [{"question": TURNS[-1:], "answer": "4"}])
    assert (alone.question, alone.context) == (" and 2 + 2? ", ()) and alone.id != task.id


def test_what_a_check_refuses_is_named_by_its_row(tmp_path: Path) -> None:
    def check(task: Task) -> None:
        if task.context:
            raise ChatError("not shown")

    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"question": TURNS, "answer": "4"}])
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 3: not shown"):
        load_tasks(DataConfig(source="rows.jsonl"), base=tmp_path, check=check)


def test_the_other_columns_arrive_in_meta(tmp_path: Path) -> None:
    row = {"q": "1?", "a": "1", "data_source": "s", "level": 3, "tests": [{"in": "x"}], "question": "other"}
    (task,) = load(tmp_path, [row], question="q", answer="a")
    assert task.meta == {"level": 3, "tests": [{"in": "x"}], "question": "other"} and task.source == "s"
    assert "column 'deep'" in message_of(
        tmp_path, [{"question": "q", "answer": "1", "deep": json.loads("[" * 40 + "]" * 40)}]
    )


def test_an_id_says_nothing_of_where_the_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*ROWS, ROWS[0], {"question": TURNS, "answer": "4", "level": 3}]
    first = load(tmp_path, rows)
    write_jsonl(tmp_path / "other" / "o" / "set" / "train.jsonl", rows)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "other"))
    for source, base in [
        (str(tmp_path / "rows.jsonl"), Path("/")),
        ("../rows.jsonl", tmp_path / "other"),
        ("other/o/set", tmp_path),
        ("hub:o/set", tmp_path),
    ]:
        again = load_tasks(DataConfig(source=source), base=base)
        assert [task.id for task in again] == [task.id for task in first], source
    assert len({task.id for task in first}) == 4 and first[2].id == f"{first[0].id}-2"


def test_an_id_changes_with_what_is_asked_and_answered_alone(tmp_path: Path) -> None:
    def id_of(**row: Any) -> str:
        return load(tmp_path, [{"question": "q", "answer": "1", **row}])[0].id

    assert id_of() == id_of(level=3) == id_of(data_source="s")
    system = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    others = [id_of(question="p"), id_of(answer="2"), id_of(question=system), id_of(question="\ud83d")]
    assert len({id_of(), *others}) == 5
    assert id_of(question=system[1:]) == id_of(), "a question is the same as text and as a message"


def test_families_keep_their_ids() -> None:
    """Runs of before go on with their noise."""
    (task,) = reasoning_gym_tasks("gcd", {}, size=1, seed=0)
    assert task.id == "7751930881d75a68"


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("He pays 3 * 24 = 72.\n#### 72", "72"),
        ("#### 1,234", "1234"),
        (72, "72"),
        (72.0, "72"),
        (0.5, "0.5"),
        (["72"], "72"),
        (" x ", "x"),
    ],
)
def test_answers_come_in_several_forms(tmp_path: Path, value: object, answer: str) -> None:
    assert load(tmp_path, [{"question": "q", "answer": value}])[0].answer == answer


def test_fields_are_mapped_and_nested_ones_reached(tmp_path: Path) -> None:
    row = {"a": {"b": [{"c": "the question"}]}, "x.y": "5", "data_source": 3}
    (task,) = load(tmp_path, [row], question="a.b.0.c", answer="x.y")
    assert (task.question, task.answer, task.source) == ("the question", "5", "rows.jsonl")


@pytest.mark.parametrize(
    ("rows", "fields", "parts"),
    [
        ([], {}, ["rows.jsonl", "empty", "at least one row"]),
        ([[1]], {}, ["line 1", "[1]", "not an object"]),
        (
            ROWS,
            {"question": "questoin"},
            ["'questoin'", "did you mean 'question'? (fields of data: question, answer)"],
        ),
        ([{"a": {"bc": 1}}], {"question": "a.bd"}, ["'a.bd'", "choose from a, a.bc"]),
        ([{"question": "q", "problem": 1}], {}, ["no field 'answer'; choose from question, problem (fields of data"]),
        ([{}], {}, ["no field 'question'; it is empty"]),
        ([{"question": " ", "answer": "1"}], {}, ["line 1", "'question' holds no question", "' '"]),
        ([{"question": [{"role": "system"}], "answer": "1"}], {}, ["message 1 (system) has no content"]),
        (
            [{"question": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}],
            {},
            ["line 1: field 'question': the last message is of role 'assistant'", "must be the user's"],
        ),
        ([{"question": [{"role": "user", "content": " "}]}], {}, ["no question", "ends with a user message"]),
        ([{"question": [{"role": "x"}]}], {}, ["line 1: field 'question': message 1 has role 'x'"]),
        ([{"question": []}], {}, ["field 'question' is no list of messages ([])"]),
        ([{"question": {"a": 1}}], {}, ["'question' holds no question ({'a': 1})"]),
        ([{"question": "q", "answer": True}], {}, ["'answer' holds no answer", "True"]),
        ([{"question": "q", "answer": "#### "}], {}, ["holds no answer"]),
        ([{"question": "q", "answer": ["x" * 100] * 2}], {}, ["holds no answer", "..."]),
    ],
)
def test_a_bad_row_is_named_with_reason_and_fix(
    tmp_path: Path, rows: list[object], fields: dict[str, Any], parts: list[str]
) -> None:
    message = message_of(tmp_path, rows, **fields)
    assert all(part in message for part in parts), message


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"question":', encoding="utf-8")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "digits.jsonl").write_text("1" * 5000, encoding="utf-8")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "not.jsonl.gz").write_bytes(b"plain")
    (tmp_path / "not.parquet").write_bytes(b"plain")
    (tmp_path / "rows.csv").write_text("a", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for source, part in [
        ("missing.jsonl", "does not exist"),
        ("broken.jsonl", "line 1 is not JSON"),
        ("deep.jsonl", "line 1 is not JSON"),
        ("digits.jsonl", "line 1 is not JSON"),
        ("bytes.jsonl", "cannot read"),
        ("not.jsonl.gz", "cannot read"),
        ("not.parquet", "not a Parquet file"),
        ("rows.csv", "unknown ending"),
        ("folder", "no 'train' split"),
    ]:
        with pytest.raises(ConfigError, match=part):
            load_tasks(DataConfig(source=source), base=tmp_path)


def test_a_directory_is_read_by_split(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "set" / "data" / "test-00000-of-00002.jsonl", ROWS[:1])
    write_jsonl(tmp_path / "set" / "data" / "test-00001-of-00002.jsonl", ROWS[1:])
    write_jsonl(tmp_path / "set" / "train.jsonl", ROWS[:1])
    config = DataConfig(source="set", split="test")
    assert len(load_tasks(config, base=tmp_path)) == 2
    assert len(load_tasks(DataConfig(source="set"), base=tmp_path)) == 1


# ---------------------------------------------------------------- hub


def test_the_local_override_stands_in_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "openai" / "gsm8k" / "main" / "train.jsonl", ROWS)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    tasks = load_tasks(DataConfig(source="hub:openai/gsm8k:main"), base=tmp_path)
    assert [task.source for task in tasks] == ["openai/gsm8k:main"] * 2
    write_jsonl(tmp_path / "o" / "flat" / "train.jsonl", ROWS)
    assert len(load_tasks(DataConfig(source="hub:o/flat"), base=tmp_path)) == 2


def test_the_hub_is_asked_for_name_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, configuration: str | None, *, split: str) -> list[dict[str, str]]:
        asked.append((name, configuration, split))
        if name == "no/net":
            raise ConnectionError("offline")
        return ROWS

    exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, exceptions=exceptions))
    monkeypatch.delenv(DATA_DIR_VARIABLE, raising=False)
    assert len(load_tasks(DataConfig(source="hub:a/b:main", split="test"), base=Path())) == 2
    assert len(load_tasks(DataConfig(source="hub:a/b"), base=Path())) == 2
    assert asked == [("a/b", "main", "test"), ("a/b", None, "train")]
    with pytest.raises(ConfigError, match=r"'hub:no/net', split 'train', cannot be loaded: offline"):
        load_tasks(DataConfig(source="hub:no/net"), base=Path())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_DIR_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install datasets"):
        load_tasks(DataConfig(source="hub:a/b"), base=tmp_path)
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install pyarrow"):
        load_tasks(DataConfig(source="rows.parquet"), base=tmp_path)


# ---------------------------------------------------------------- reasoning-gym


def test_families_are_mixed_distinct_and_reproducible() -> None:
    families = {"gcd": {"max_value": 99}, "count_bits": {"max_n": 999}}
    config = DataConfig(source="reasoning_gym", families=families, size=20, seed=1)
    tasks = load_tasks(config, base=Path())
    assert [task.source for task in tasks] == ["gcd", "count_bits"] * 20
    assert len({task.id for task in tasks}) == 40
    assert load_tasks(config, base=Path()) == tasks
    assert all(task.meta["family"] == task.source for task in tasks)
    assert all(task.meta["entry"]["answer"] == task.answer for task in tasks)


def test_neighbouring_seeds_share_no_run_of_items() -> None:
    """reasoning-gym's own item i of seed s is item i - 1 of seed s + 1."""
    options = {"min_value": 100, "max_value": 99_999}
    one = reasoning_gym_tasks("gcd", options, size=100, seed=1)
    two = reasoning_gym_tasks("gcd", options, size=100, seed=2)
    assert {task.question for task in one}.isdisjoint(task.question for task in two)


def test_excluded_answers_are_dropped_and_replaced() -> None:
    plain = reasoning_gym_tasks("gcd", {}, size=60, seed=0)
    asked = reasoning_gym_tasks("gcd", {"exclude_answers": ["1"]}, size=60, seed=0)
    assert "1" in {task.answer for task in plain}
    assert "1" not in {task.answer for task in asked}
    assert len(asked) == 60


def test_a_family_without_one_oracle_answer_is_loaded() -> None:
    (task,) = reasoning_gym_tasks("graph_color", {}, size=1, seed=0)
    assert task.answer == "" and task.meta["entry"]["answer"] is None


@pytest.mark.parametrize(
    ("families", "parts"),
    [
        ({"count_primse": {}}, ["'count_primse'", "did you mean 'count_primes'?"]),
        ({"gcd": {"max_valeu": 5}}, ["'max_valeu'", "did you mean 'max_value'?"]),
        ({"zzz": {}}, ["'zzz'; choose from ab, "]),
        ({"gcd": {"seed": 5}}, ["no option 'seed'; choose from "]),
        ({"gcd": {"min_value": 9, "max_value": 5}}, ["'gcd' refuses min_value = 9", "families.gcd"]),
        ({"gcd": {"min_value": 2, "max_value": 3}}, ["gave only 4 distinct tasks", "size = 20"]),
    ],
)
def test_a_bad_family_is_named_with_reason_and_fix(families: dict[str, Any], parts: list[str]) -> None:
    config = DataConfig(source="reasoning_gym", families=families, size=20)
    with pytest.raises(ConfigError) as caught:
        load_tasks(config, base=Path())
    assert all(part in str(caught.value) for part in parts), str(caught.value)
