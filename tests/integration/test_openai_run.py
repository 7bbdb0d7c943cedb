"""`engine.kind = "openai"` from a recipe: what has no log-probs is evaluated, and never learned from."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.record.reading import export_lines
from rocstar.train.learner.cold_start import build_tokenizer
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.load import load_recipe
from rocstar.train.serving.openai import KEY_VARIABLE
from tests.fakes.json_lines import read_folder

KEY = "sk-a-secret-of-somebody"


class Endpoint(BaseHTTPRequestHandler):
    """Takes text alone, and always says 1."""

    seen: list[tuple[str | None, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers["Authorization"], body))
        is_text = isinstance(body["prompt"], str)
        choice = {"text": "<answer>\\boxed{1}</answer>", "finish_reason": "stop"}
        answer = {"choices": [choice]} if is_text else {"error": "prompt must be a string"}
        told = json.dumps(answer).encode()
        self.send_response(200 if is_text else 400)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[tuple[str | None, dict[str, Any]]]]]:
    """Its address, and what it was asked."""
    seen: list[tuple[str | None, dict[str, Any]]] = []
    handler = type("Handler", (Endpoint,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        server.shutdown()
        thread.join()


@pytest.fixture
def options(workshop: Any, tmp_path: Path, endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The coin recipe with a remote model; only its tokenizer is local."""
    recipe = load_recipe(workshop.recipe)
    rows = [json.loads(line) for line in (workshop.directory / "chat.jsonl").read_text().splitlines()]
    tokenizer = build_tokenizer(recipe, rows)
    model = build_model(recipe.model.scratch, len(tokenizer), seed=recipe.run.seed)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    model.config.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    given = {"model.path": tmp_path / "tokenizer", "engine.kind": "openai", "engine.url": endpoint[0]}
    given |= {"engine.model": "theirs", "sft.steps": 0}
    return [f"--{name}={value}" for name, value in given.items()]


def test_an_endpoint_is_evaluated_and_its_key_is_written_nowhere(
    workshop: Any, tmp_path: Path, endpoint: Any, options: list[str]
) -> None:
    out = tmp_path / "out"
    ended = workshop.succeed("eval", "coin.toml", f"--out={out}", "--json", *options)
    assert json.loads(ended.stdout)["eval/heldout/avg@2"] == 0.5, "half of the coins show 1"
    asked = endpoint[1]
    assert {key for key, _ in asked} == {f"Bearer {KEY}"} and {b["model"] for _, b in asked} == {"theirs"}
    for path in out.rglob("*"):
        assert KEY not in (path.read_text() if path.is_file() else ""), path
    assert KEY not in ended.stdout + ended.stderr


def test_what_has_no_logprobs_says_so_and_is_not_learned_from(
    workshop: Any, tmp_path: Path, options: list[str]
) -> None:
    out = tmp_path / "rollouts"
    ended = workshop.succeed("rollout", "coin.toml", f"--out={out}", "--steps=1", *options)
    records = list(read_folder(out / "trajectories"))
    assert len(records) == 16 and all(p is None for record in records for p in record["logprobs"])
    (lines,) = export_lines(out / "trajectories", tmp_path)
    assert "NaN" not in lines.read_text()
    steps = ["--stages.0.steps=1", "--stages.1.steps=0"]
    learned = ["train", "coin.toml", f"--from-rollouts={out}", f"--output-dir={tmp_path / 'run'}", *steps]
    ended = workshop.main(*learned, *options, "--engine.kind=embedded", "--engine.url=", "--engine.model=")
    assert ended.returncode == 2 and "no log-prob: its engine gave none" in ended.stderr, ended.stderr


def test_training_with_an_endpoint_is_refused_before_anything_is_written(
    workshop: Any, tmp_path: Path, endpoint: Any, options: list[str]
) -> None:
    ended = workshop.main("train", "coin.toml", f"--output-dir={tmp_path / 'run'}", *options)
    assert ended.returncode == 2 and "'openai' is for eval and rollout" in ended.stderr
    assert not (tmp_path / "run").exists() and not endpoint[1]
    ended = workshop.main("eval", "coin.toml", *options, "--engine.url=http://127.0.0.1:1/v1")
    assert ended.returncode == 2 and "start the endpoint" in ended.stderr
