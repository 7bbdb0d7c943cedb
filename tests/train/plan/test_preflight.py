"""Everything that a run lacks is found before it begins, and all of it at once."""

import io
import json
import sys
import urllib.error
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import pytest

from rocstar.train.cli import main
from rocstar.train.learner import hub
from rocstar.train.plan import preflight
from rocstar.train.plan.preflight import check_disk, check_start, peak_checkpoints
from rocstar.train.recipe.config import Recipe
from rocstar.train.recipe.errors import ConfigError, ConfigErrors
from rocstar.train.recipe.load import parse_recipe

STAGE = {"steps": 10, "max_response_tokens": 100, "max_turns": 2, "data": {"source": "tasks.jsonl"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    (tmp_path / "chat.jsonl").write_text(talks(BOXED))
    return tmp_path


def recipe(**sections: Any) -> Recipe:
    raw = {"sft": {"steps": 1, "data": "chat.jsonl"}, "stages": [STAGE]} | sections
    return parse_recipe(raw, where="test")


def talks(*answers: str) -> str:
    """Rows of one question each, and these answers."""
    said = [
        [{"role": "user", "content": f"{k}?"}, {"role": "assistant", "content": answer}]
        for k, answer in enumerate(answers)
    ]
    return "".join(json.dumps({"messages": messages}) + "\n" for messages in said)


BOXED, BARE = "<answer>\\boxed{2}</answer>", "It is 2."


@pytest.mark.parametrize(("bare", "refused"), [(0, False), (1, False), (2, True)])
def test_conversations_that_contradict_their_prompt_are_counted(folder: Path, bare: int, refused: bool) -> None:
    """The template "compact" demands an answer in both forms; 1 in 100 may lack it."""
    (folder / "chat.jsonl").write_text(talks(*[BARE] * bare, *[BOXED] * (100 - bare)))
    found = check_start(recipe(), folder / "run", dry=True)
    words = f"{bare} of 100 conversations ({bare:.1f}%) lack the answer form"
    line = (found.problems if refused else found.notes)[0]
    assert words in line and bool(found.problems) == refused
    if refused:
        assert "<answer> 2, \\boxed 2; the first is conversation 1" in line
        sft = {"steps": 1, "data": "chat.jsonl"}
        for changed in ({"template": "qwen3"}, {"max_contradicting": 0.02}):
            assert check_start(recipe(sft=sft | changed), folder / "run", dry=True).problems == [], changed


def test_half_a_form_is_none(folder: Path) -> None:
    (folder / "chat.jsonl").write_text(talks("<answer>2</answer>"))
    (problem,) = check_start(recipe(), folder / "run", dry=True).problems
    assert "lacking: \\boxed 1;" in problem


def test_the_answer_form_of_the_models_absent_folder_is_counted_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundled template needs no model: a dry run away from the model counts as the run will."""
    monkeypatch.setattr(hub, "exists", lambda *_: True)
    (folder / "chat.jsonl").write_text(talks(BARE))
    away = recipe(model={"path": "owner/model", "template": "rstar2"})
    (problem,) = check_start(away, folder / "run", dry=True).problems
    assert "1 of 1 conversations" in problem


def offline(*_: object) -> bool:
    raise hub.Unreachable("no network")


def test_a_recipe_that_can_run_lacks_nothing(folder: Path) -> None:
    found = check_start(recipe(), folder / "run", dry=True)
    assert (found.problems, found.unknown, found.verdict) == ([], [], "ready: nothing is missing")
    check_start(recipe(), folder / "run").refuse()
    assert sorted(path.name for path in folder.iterdir()) == ["chat.jsonl", "tasks.jsonl"], "nothing is made"


def test_the_conversations_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be gigabytes. What was read for the checks is what the cold start learns."""
    read, paths = preflight.read_conversations, list[Path]()

    def noted(path: Path, *tools: Any) -> list[dict[str, Any]]:
        paths.append(path)
        return read(path, *tools)

    monkeypatch.setattr(preflight, "read_conversations", noted)
    tasks = check_start(recipe(), folder / "run").tasks
    assert tasks is not None and [row["messages"][0]["content"] for row in tasks.conversations] == ["0?"]
    assert paths == [Path("chat.jsonl")]
    assert preflight.load_all_tasks(recipe()).conversations == tasks.conversations and len(paths) == 2


UNREADABLE = ["The answer is 7", "Answer: 42", "\u2300 of nothing", "\\frac{1}{2"]


def answers(folder: Path, *texts: str) -> None:
    rows = [{"question": f"{k}?", "answer": text} for k, text in enumerate(texts)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_answers_that_the_judge_cannot_read_are_counted_and_three_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(folder, *UNREADABLE, *["42"] * 96)
    found = check_start(recipe(), folder / "run", dry=True)
    assert found.problems == []
    (note,) = [line for line in found.notes if "answers" in line]
    assert note.startswith("stages.0.data: 4 of 100 answers")
    assert [text for text in UNREADABLE if repr(text) in note] == UNREADABLE[:3]
    preflight.load_all_tasks(recipe())
    assert capsys.readouterr().err.endswith(note + "\n")


def test_more_unreadable_answers_than_the_source_allows_are_refused(folder: Path) -> None:
    answers(folder, *UNREADABLE, "42", "3\\pi")
    (problem,) = check_start(recipe(), folder / "run", dry=True).problems
    assert "4 of 6 answers" in problem and "max_unreadable = 0.1" in problem
    allowed = STAGE | {"data": {"source": "tasks.jsonl", "max_unreadable": 0.7}}
    found = check_start(recipe(stages=[allowed]), folder / "run", dry=True)
    assert found.problems == [] and any("4 of 6 answers" in line for line in found.notes)


@pytest.mark.parametrize("reward", [{"kind": "beside:score"}, {"mode": "fused"}])
def test_another_reward_reads_its_answers_itself(folder: Path, reward: dict[str, str]) -> None:
    (folder / "beside.py").write_text("def score(attempt): return 1.0\n")
    answers(folder, *UNREADABLE)
    found = check_start(recipe(reward=reward), folder / "run", dry=True)
    assert not any("answers" in line for line in found.notes + found.problems)


LACKS = {
    "run": {"trackers": ["trackio"], "callbacks": ["gone:Mine"]},
    "model": {"path": "./gone", "template": "foo"},
    "sft": {"steps": 1, "data": "gone_chat.jsonl"},
    "tool": {"flavour": "numpy"},
    "engine": {"kind": "sglang", "replicas": 1},
    "stages": [STAGE | {"data": {"source": "gone_1.jsonl"}}, STAGE | {"data": {"source": "gone_2.jsonl"}}],
    "eval": [{"data": {"source": "gone_3.jsonl"}}],
}
LACKING = (
    "pip install trackio",
    "'gone:Mine'",
    "./gone",
    "'foo'",
    "gone_chat",
    "numpy",
    "gone_1",
    "gone_2",
    "gone_3",
    "sglang",
    "read-only or",
)


@pytest.mark.parametrize("dry", [True, False])
def test_all_that_is_missing_is_told_at_once(folder: Path, dry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.setenv("ROCSTAR_SGLANG_PYTHON", "/gone/python")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ConfigErrors) as failure:
        check_start(recipe(**LACKS), folder / "run", dry=dry).refuse()
    problems = failure.value.problems
    for word in LACKING:
        assert sum(word in problem for problem in problems) == 1, (word, problems)
    assert len(problems) == len(LACKING)
    fields = ("model.path", "model.template", "sft.data", "tool.flavour", "engine.kind", "eval.0.data")
    for field in (*fields, "stages.0.data", "stages.1.data", "output directory"):
        assert any(problem.startswith(field) for problem in problems), field


def test_the_command_lists_it_line_by_line_and_still_prints_the_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dry-run", "--world=8x8", "--output-dir", str(folder / "run")]
    wrong = ["--model.template=foo", "--eval.data.source=gone.jsonl", "--eval.data.families={}"]
    assert main(["train", "quickstart", *options, *wrong]) == 2
    printed, told = capsys.readouterr()
    assert "--node-rank=7" in printed and "not checked: output directory" in printed
    lines = told.splitlines()
    assert len(lines) == 2 and all(line.startswith("rocstar: ") for line in lines)
    assert main(["train", "quickstart", *options, *wrong, "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert [f"rocstar: {problem}" for problem in shown["problems"]] == lines and not shown["ok"]
    world = {"nodes": 8, "ranks_per_node": 8, "serving_nodes": 0, "serving_gpus": 0}
    assert shown["world"] == world and shown["recipe"]["run"]["name"] == "quickstart"


@pytest.mark.parametrize("verb", [["eval"], ["rollout", "--out", "gone/x.jsonl"]])
def test_eval_and_rollout_rehearse_too(folder: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb[0], "quickstart", *verb[1:], "--model=./gone", "--dry-run", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert "./gone" in shown["problems"][0] and len(shown["problems"]) == len(verb[:2])


def test_a_name_that_the_hub_cannot_be_asked_about_is_said_not_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCSTAR_DATA_DIR", raising=False)
    monkeypatch.setattr(hub, "exists", offline)
    named = recipe(model={"path": "owner/model", "template": "compact"}, eval=[{"data": {"source": "hub:owner/data"}}])
    found = check_start(named, folder / "run", dry=True)
    assert found.problems == []
    assert [line.partition(" ")[0] for line in found.unknown] == ["model.path", "eval.0.data"]
    assert all("no network" in line for line in found.unknown)
    assert found.verdict.endswith("nothing is missing; 2 could not be checked: model.path, eval.0.data")
    with pytest.raises(ConfigErrors) as failure:
        check_start(named, folder / "run").refuse()
    assert len(failure.value.problems) == 2, "a run would only wait for the hub, and fail then"
    assert "$ROCSTAR_DATA_DIR/owner/data" in failure.value.problems[1]


def test_a_name_that_is_not_on_the_hub_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "exists", lambda *_: False)
    found = check_start(
        recipe(model={"path": "owner/model"}, eval=[{"data": {"source": "hub:owner/data"}}]), folder / "run", dry=True
    )
    assert len(found.problems) == 2 and all("shows no such" in problem for problem in found.problems)


def test_what_lies_in_the_data_folder_needs_no_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "exists", offline)
    (folder / "owner" / "data").mkdir(parents=True)
    (folder / "owner" / "data" / "test.jsonl").write_text('{"question": "2?", "answer": "2"}\n')
    monkeypatch.setenv("ROCSTAR_DATA_DIR", str(folder))
    found = check_start(
        recipe(eval=[{"data": {"source": "hub:owner/data", "split": "test"}}]), folder / "run", dry=True
    )
    assert (found.problems, found.unknown) == ([], [])


@pytest.mark.parametrize(
    ("answer", "known"),
    [(200, True), (404, False), (401, False), (503, "503"), (BadStatusLine("SSH-2.0"), r"SSH-2\.0")],
)
def test_what_the_hub_answers(answer: Any, known: bool | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)

    def open_url(request: Any, *, timeout: float) -> object:
        assert timeout == hub.ASK_S and request.full_url.endswith("/api/models/a/b")
        if isinstance(answer, Exception):
            raise answer
        if answer != 200:
            raise urllib.error.HTTPError(request.full_url, answer, "no", None, io.BytesIO())  # type: ignore[arg-type]
        return object()

    if isinstance(known, str):
        with pytest.raises(hub.Unreachable, match=known):
            hub.exists("a/b", "models", open_url=open_url)
    else:
        assert hub.exists("a/b", "models", open_url=open_url) is known


@pytest.mark.parametrize("name", ["my model", "../model", "a/b?c", "-x"])
def test_what_is_no_hub_name_is_asked_of_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    assert not hub.exists(name, "models", open_url=lambda *_, **__: pytest.fail("the hub was asked"))


def test_a_model_without_weights_is_no_model(folder: Path) -> None:
    (folder / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / "model" / name).write_text('{"model_type": "qwen3"}')
    found = check_start(recipe(model={"path": "./model"}), folder / "run", dry=True)
    assert any("lacks the weights" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("every", "last", "keep_every", "peak"), [(0, 2, 0, 2), (1, 2, 0, 4), (5, 1, 0, 3), (1, 1, 5, 4), (1, 100, 0, 11)]
)
def test_checkpoints_that_lie_there_at_one_time(every: int, last: int, keep_every: int, peak: int) -> None:
    config = {"every": every, "keep_last": last, "keep_every": keep_every}
    assert peak_checkpoints(recipe(checkpoint=config)) == peak


def test_a_disk_without_room_for_the_checkpoints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for usage, told in (
        ((1 << 40, 0, 1_000_000), r": 1 MB are free, and 2 checkpoints .*keep_last = 2"),
        ((0, 0, 0), r"cannot be written: the file system of .* stores no files; choose another --output-dir"),
    ):
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _, usage=usage: usage)
        with pytest.raises(ConfigError, match=told):
            check_disk(recipe(), folder / "run" / "deep")


def test_a_redis_that_does_not_answer_is_missing_and_its_password_untold(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCSTAR_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    (problem,) = check_start(recipe(tool={"sandbox": "redis"}), folder / "run", dry=True).problems
    assert "ROCSTAR_REDIS_URL does not answer" in problem and "secret" not in problem


def test_a_run_that_is_there_is_told_before_it_would_be_met(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").touch()
    (problem,) = check_start(recipe(), folder / "run", dry=True).problems
    assert "holds a run; pass --resume" in problem
    assert check_start(recipe(), folder / "run", dry=True, resume=True).problems == []


def test_a_start_that_lacks_something_downloads_no_set(folder: Path) -> None:
    asked: list[str] = []

    def load(config: Any) -> list[Any]:
        asked.append(config.set)
        return []

    chosen = recipe(eval=[{"set": "aime24"}])
    found = check_start(chosen, folder / "tasks.jsonl" / "run", built_in=load)
    assert len(found.problems) == 1 and not asked
    check_start(chosen, folder / "run", built_in=load)
    assert asked == ["aime24"]


def test_a_redis_without_its_client_is_told_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "missing_extra_message", lambda who, extra: f"{who} needs redis of {extra}")
    with pytest.raises(ConfigError, match=r"^tool.sandbox = 'redis' needs redis of fabric$"):
        preflight.check_redis("redis://127.0.0.1:1")


XML_TEMPLATE = """
{{- '<|im_start|>system\\n' }}{% for t in tools or [] %}{{- t | tojson }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{- '<tool_call><function=' + c.function.name + '>' }}
{%- for k, v in c.function.arguments | items %}
{{- '<parameter=' + k + '>\\n' + v + '\\n</parameter>' }}{% endfor %}
{{- '</function></tool_call>' }}{% endfor %}{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize(("code", "problems"), [("print(1)", 0), ("'</parameter></function>'", 1)])
def test_a_row_whose_calls_are_not_read_back_is_named(folder: Path, code: str, problems: int) -> None:
    """XML has no escapes, so that not every program can be written in it."""
    call = {"function": {"name": "python_code_with_standard_io", "arguments": json.dumps({"code": code})}}
    asked = {"role": "user", "content": "x"}
    rows = [[asked, {"role": "assistant", "content": "y"}], [asked, {"role": "assistant", "tool_calls": [call]}]]
    (folder / "chat.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    (folder / "xml.jinja").write_text(XML_TEMPLATE)
    found = check_start(recipe(model={"path": "scratch", "template": "xml.jinja"}), folder / "run", dry=True)
    assert len(found.problems) == problems, found.problems
    assert all("sft.data, conversation 2: " in one and "read back" in one for one in found.problems)


def test_a_template_of_an_unknown_call_form_is_refused(folder: Path) -> None:
    (folder / "mine.jinja").write_text(XML_TEMPLATE.replace("<function=", "<call to="))
    found = check_start(recipe(model={"path": "scratch", "template": "mine.jinja"}), folder / "run", dry=True)
    assert len(found.problems) == 1 and "form that no parser here reads" in found.problems[0]
