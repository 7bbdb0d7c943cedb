"""lm-eval, inspect-ai and lighteval, each from an environment of its own, against `rocstar serve`.

    python benchmarks/serve_clients.py runs/quickstart/checkpoints/step_0 --lm-eval ENV --inspect ENV \\
        --lighteval ENV --out benchmarks/results/serve_clients.json

    rocstar eval ──> what each of the 20 puzzles earns, greedy and sampled ┐
    rocstar serve <── client, its own command ──> what it counted          ┴──> puzzles that differ
    transformers ──> log-probs of the answers of choices.jsonl             ──> beside those that lm-eval got

The clients are unchanged; their tasks are examples/clients. Greedy there is no noise. Sampled the same noise
is drawn where the client can send a task's name, which is inspect-ai's `extra_body`. ENV is a virtual
environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_bench.report import bar, finish

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "clients"
SERVED_AT = re.compile(r"at (http://\S+)/v1 ")
START_S, CLIENT_S = 300.0, 900.0
Verdicts = dict[str, float]
"""What each question earned."""


def rocstar(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("rocstar")), *arguments]


def evaluated(model: Path, folder: Path) -> tuple[dict[str, Verdicts], dict[str, str], int]:
    """What `rocstar eval` finds of each question, greedy and sampled; the tasks' names; the noise's seed."""
    from rocstar.engine.record.reading import read_records
    from rocstar.train.evaluation.evaluate import EVAL_SEED
    from rocstar.train.recipe.data_config import DataConfig
    from rocstar.train.recipe.eval_config import EvalConfig
    from rocstar.train.recipe.load import recipe_of_model
    from rocstar.train.recipe.toml import to_toml

    recipe = recipe_of_model(model)
    data = DataConfig(source=str(folder / "questions.jsonl"))
    sets = [
        EvalConfig(name=name, data=data, samples_per_task=1, temperature=temperature)
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0))
    ]
    (folder / "recipe.toml").write_text(to_toml(recipe.model_copy(update={"eval": sets})))
    command = rocstar("eval", "recipe.toml", "--model", str(model), "--out", "evaluated", "--json")
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Verdicts] = {}
    names: dict[str, str] = {}
    for name in ("greedy", "sampled"):
        records = list(read_records(folder / "evaluated" / "attempts" / f"{name}.jsonl"))
        found[name] = {r["task"]["question"]: float(r["outcome"]["reward"]) for r in records}
        names |= {r["task"]["question"]: r["task"]["id"] for r in records}
    return found, names, recipe.run.seed + EVAL_SEED


@contextlib.contextmanager
def served(model: Path, folder: Path) -> Iterator[str]:
    """The address of `rocstar serve` while the block runs."""
    log = folder / "serve.log"
    command = rocstar("serve", str(model), "--port", "0", "--out", "served")
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stderr=out)
    try:
        until = time.monotonic() + START_S
        while not (found := SERVED_AT.search(log.read_text())):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield found.group(1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(command: Sequence[str], folder: Path, **environment: str) -> float:
    """Run a client in `folder`; the seconds that it took."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), **environment}
    variables.pop("PYTHONPATH", None)
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=CLIENT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.monotonic() - began


def version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


# ---- the clients ----


def lm_eval(
    environment: Path, url: str, folder: Path, seed: int
) -> tuple[Verdicts, list[list[float]], float]:
    """What lm-eval counted of each puzzle, and the log-probs that it got of every choice."""
    program = [str(environment / "bin" / "lm_eval"), "run", "--include_path", "."]
    kept = ["--log_samples", "--output_path", "lm_eval", "--batch_size", "1"]
    agent = f"model=rocstar-agent,base_url={url}/v1/chat/completions,num_concurrent=4,seed={seed}"
    command = ["--model", "local-chat-completions", "--model_args", agent, "--tasks", "rocstar_puzzles"]
    took_s = run([*program, *command, "--apply_chat_template", *kept], folder)
    alone = f"model=rocstar-raw,base_url={url}/v1/completions,num_concurrent=4"
    command = ["--model", "local-completions", "--model_args", alone, "--tasks", "rocstar_choices"]
    took_s += run([*program, *command, *kept], folder)
    puzzles, choices = (_samples(folder / "lm_eval", name) for name in ("rocstar_puzzles", "rocstar_choices"))
    counted = {row["doc"]["question"]: float(row["exact_match"]) for row in puzzles}
    likely = [[float(pair[0]) for pair in row["filtered_resps"]] for row in sorted(choices, key=_number)]
    return counted, likely, took_s


def _number(row: Mapping[str, Any]) -> int:
    return int(row["doc_id"])


def _samples(folder: Path, name: str) -> list[dict[str, Any]]:
    (path,) = folder.rglob(f"samples_{name}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def inspect(
    environment: Path, url: str, folder: Path, *, temperature: float, seed: int
) -> tuple[Verdicts, float]:
    """What inspect-ai counted of each puzzle."""
    logs = folder / f"inspect_{temperature:g}"
    program = [str(environment / "bin" / "inspect"), "eval", "puzzles_inspect.py", "--display", "none"]
    model = ["--model", "openai-api/rocstar/rocstar-agent", "--temperature", str(temperature)]
    named = ["-T", "named=true", "-T", "questions=named.jsonl", "--seed", str(seed)]
    kept = ["--log-dir", str(logs), "--log-format", "json", "--max-tokens", "160"]
    took_s = run(
        [*program, *model, *named, *kept], folder, ROCSTAR_BASE_URL=f"{url}/v1", ROCSTAR_API_KEY="none"
    )
    (path,) = logs.glob("*.json")
    log = json.loads(path.read_text())
    assert log["status"] == "success", log.get("error")
    return {one["input"]: float(one["scores"]["pattern"]["value"] == "C") for one in log["samples"]}, took_s


def lighteval(environment: Path, url: str, folder: Path) -> tuple[Verdicts, float]:
    """What lighteval counted of each puzzle."""
    model = f"model_name=openai/rocstar-agent,base_url={url}/v1,api_key=none"
    model += ",generation_parameters={temperature:0.0,max_new_tokens:160}"
    program = [str(environment / "bin" / "lighteval"), "endpoint", "litellm", model]
    task = ["custom|rocstar_puzzles|0|0", "--custom-tasks", "puzzles_lighteval.py"]
    kept = ["--output-dir", "lighteval", "--save-details"]
    took_s = run([*program, *task, *kept], folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
    (path,) = (folder / "lighteval" / "details").rglob("*.parquet")
    code = "import json, sys, pyarrow.parquet as p; print(json.dumps(p.read_table(sys.argv[1]).to_pylist()))"
    read = [str(environment / "bin" / "python"), "-c", code, str(path)]
    rows = json.loads(subprocess.run(read, capture_output=True, text=True, check=True).stdout)
    return {row["example"]: float(row["metrics"]["boxed"]) for row in rows}, took_s


# ---- the other side of choices.jsonl ----


def forward(model: Path, folder: Path) -> list[list[float]]:
    """The log-prob of every choice behind its question, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build: Any = AutoModelForCausalLM
    network, tokenizer = build.from_pretrained(model, dtype=torch.float32).eval(), load(AutoTokenizer, model)
    found = []
    for line in (folder / "choices.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.append([_logprob(network, tokenizer, row["question"], choice) for choice in row["choices"]])
    return found


def load(kind: Any, model: Path) -> Any:
    return kind.from_pretrained(model)


def _logprob(network: Any, tokenizer: Any, question: str, choice: str) -> float:
    import torch

    # lm-eval's cut: where a merge crosses it, these ids are not those of the whole text.
    asked = tokenizer.encode(question, add_special_tokens=False)
    before = len(asked)
    ids = asked + tokenizer.encode(question + choice, add_special_tokens=False)[before:]
    with torch.inference_mode():
        logprobs_TV = torch.log_softmax(network(torch.tensor([ids])).logits[0].float(), -1)
    return sum(float(logprobs_TV[k - 1, ids[k]]) for k in range(before, len(ids)))


# ---- what comes of it ----


def compared(counted: Verdicts, wanted: Verdicts, took_s: float) -> dict[str, Any]:
    """Of one client: its accuracy beside ours, and how many puzzles differ."""
    assert counted.keys() == wanted.keys(), "the client asked other questions"
    return {
        "questions": len(counted),
        "accuracy": sum(counted.values()) / len(counted),
        "rocstar_eval": sum(wanted.values()) / len(wanted),
        "differ": sum(counted[question] != wanted[question] for question in wanted),
        "seconds": took_s,
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every client whose environment was given."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    wanted, names, seed = evaluated(options.model.absolute(), folder)
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    named = [json.dumps({**row, "id": names[row["question"]]}) for row in rows]
    (folder / "named.jsonl").write_text("\n".join(named) + "\n")
    result: dict[str, Any] = {"model": options.model.name, "clients": {}}
    found = result["clients"]
    with served(options.model.absolute(), folder) as url:
        if options.lm_eval:
            counted, likely, took_s = lm_eval(options.lm_eval, url, folder, seed)
            mine = forward(options.model, folder)
            best = [row.index(max(row)) for row in mine]
            found["lm_eval"] = {
                "version": version(options.lm_eval / "bin" / "python", "lm_eval"),
                **compared(counted, wanted["greedy"], took_s),
                "choices": len(mine),
                "choices_differ": sum(row.index(max(row)) != b for row, b in zip(likely, best, strict=True)),
                "logprob_differs": max(
                    abs(a - b) for x, y in zip(likely, mine, strict=True) for a, b in zip(x, y, strict=True)
                ),
            }
        if options.inspect:
            for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
                counted, took_s = inspect(options.inspect, url, folder, temperature=temperature, seed=seed)
                found[f"inspect_{name}"] = {
                    "version": version(options.inspect / "bin" / "python", "inspect_ai"),
                    **compared(counted, wanted[name], took_s),
                }
        if options.lighteval:
            counted, took_s = lighteval(options.lighteval, url, folder)
            found["lighteval"] = {
                "version": version(options.lighteval / "bin" / "python", "lighteval"),
                "litellm": version(options.lighteval / "bin" / "python", "litellm"),
                **compared(counted, wanted["greedy"], took_s),
            }
    result["notes"] = [line for line in (folder / "serve.log").read_text().splitlines() if " sends " in line]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients of others against `rocstar serve`.")
    parser.add_argument("model", type=Path, help="a checkpoint of a run whose policy uses its tool")
    for name in ("--lm-eval", "--inspect", "--lighteval"):
        text = "its virtual environment; left out: not run"
        parser.add_argument(name, type=lambda given: Path(given).absolute(), metavar="ENV", help=text)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for what the clients write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.keep is not None:
            options.keep.mkdir(parents=True)
            folder = options.keep.absolute()
        result = measure(options, folder)
    bars = []
    for name, one in result["clients"].items():
        bars.append(bar(f"{name}: puzzles that differ from rocstar eval", one["differ"], 0, at_most=True))
        if "logprob_differs" in one:
            bars += [
                bar("lm_eval: log-prob of an answer", one["logprob_differs"], 1e-3, at_most=True),
                bar("lm_eval: choices that differ", one["choices_differ"], 0, at_most=True),
            ]
    print(json.dumps(result, indent=1))
    return finish("serve_clients", result, bars, options.out)


if __name__ == "__main__":
    sys.exit(main())
