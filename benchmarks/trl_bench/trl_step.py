"""Whole agentic steps of TRL's GRPOTrainer with a Python tool, one when asked. Run by the peer's interpreter.

    python trl_step.py MODEL TASKS.json BATCH ACCUMULATION GENERATION_BATCHES SETTINGS.json

TASKS has the tasks of every step in order, each with the token ids of its prompt, which TRL's own rendering
must reproduce. A step is timed from its first batch to the end of its optimizer step, logging left out. Times
of its parts are taken around the trainer's own functions; `rest` is the remainder.

The tool is that of tool.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import tool
import torch
import trl
from datasets import Dataset
from tool import Run
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from wire import answer, question

OUTPUT_CHARS = 160


class Parts:
    """Seconds inside named functions, and counts, since the last `take`."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - started)

    def around(self, owner: Any, function: str, name: str) -> None:
        original = getattr(owner, function)

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.timed(name):
                return original(*arguments, **named)

        setattr(owner, function, timed)

    def take(self) -> dict[str, float]:
        taken, self.sums = self.sums, {}
        return taken


def tool_of(run: Run, parts: Parts) -> Callable[..., str]:
    def python_code_with_standard_io(code: str, input: str = "") -> str:  # noqa: A002 - the model sees the name
        """Execute Python code.

        Args:
            code: The code.
            input: What it reads from standard input.
        """
        with parts.timed("tool_s"):
            fine, text = run(code)
        parts.add("calls", 1)
        parts.add("errors", not fine)
        return text[:OUTPUT_CHARS]

    return python_code_with_standard_io


def reward_of(parts: Parts) -> Callable[..., list[float]]:
    def reward(completions: list[Any], truth: list[str], **_: Any) -> list[float]:
        rewards = []
        for messages, expected in zip(completions, truth, strict=True):
            text = "\n".join(m.get("content") or "" for m in messages if m["role"] == "assistant")
            answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
            boxed = re.findall(r"\\boxed\{([^{}]*)\}", answers[-1]) if answers else []
            rewards.append(float(bool(boxed) and boxed[-1].strip() == expected))
        parts.add("reward_sum", sum(rewards))
        parts.add("trajectories", len(rewards))
        return rewards

    return reward


class Driver(TrainerCallback):
    """Between two steps the trainer waits here for the parent."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.began = parts, 0.0

    def wait(self) -> None:
        if question() is None:
            raise SystemExit
        self.parts.take()
        self.began = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        answer(ready=True)
        self.wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        wall_s, parts = time.perf_counter() - self.began, self.parts.take()
        parts["generate_s"] = parts.pop("generation_s") - parts.get("tool_s", 0.0)
        parts["learn_s"] = sum(parts.pop(name) for name in ("loss_s", "backward_s", "optimizer_s"))
        answer(wall_s=wall_s, **parts, updates=1)
        self.wait()


def trainer(options: list[str], settings: dict[str, Any], scratch: str, run: Run) -> GRPOTrainer:
    model_dir, tasks_file, batch, accumulation, generation_batches = options
    with open(tasks_file) as file:
        tasks = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = settings["template"]
    tokenizer.response_template = qwen3_template  # a template that TRL does not know has no parser
    parts = Parts()
    config = GRPOConfig(
        output_dir=scratch, use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=int(batch), gradient_accumulation_steps=int(accumulation),
        steps_per_generation=int(generation_batches), num_generations=settings["siblings"],
        max_completion_length=settings["max_response_tokens"],
        max_tool_calling_iterations=settings["max_turns"] - 1,
        temperature=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28,
        learning_rate=settings["lr"], lr_scheduler_type="constant", optim="adamw_torch_fused",
        adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0,
        max_steps=1_000_000, shuffle_dataset=False, dataloader_num_workers=0, seed=0,
        logging_strategy="no", report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": t["question"]}], "truth": t["answer"]} for t in tasks]
    python = tool_of(run, parts)
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        reward_funcs=reward_of(parts),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        tools=[python],
    )
    for row, task in zip(rows, tasks, strict=True):
        ids = tokenizer.apply_chat_template(
            row["prompt"], tools=[python], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        if list(ids) != task["prompt_ids"]:
            raise RuntimeError(f"TRL renders {task['question']!r} to other tokens")
    _time_parts(parts)
    made.remove_callback(PrinterCallback)
    made.add_callback(Driver(parts))
    return made


def _time_parts(parts: Parts) -> None:
    parts.around(GRPOTrainer, "_generate", "generation_s")
    parts.around(GRPOTrainer, "_compute_loss", "loss_s")
    parts.around(GRPOTrainer, "_calculate_rewards", "reward_s")
    parts.around(accelerate.Accelerator, "backward", "backward_s")
    parts.around(accelerate.optimizer.AcceleratedOptimizer, "step", "optimizer_s")
    make = GRPOTrainer._generate_and_score_completions

    def counted(self: GRPOTrainer, inputs: Any) -> Any:
        made = make(self, inputs)
        mask = made["completion_mask"]
        own = mask * made["tool_mask"] if "tool_mask" in made else mask
        parts.add("policy_tokens", int(own.sum()))
        parts.add("response_tokens", int(mask.sum()))
        parts.add("rows_trained", len(mask))
        return made

    GRPOTrainer._generate_and_score_completions = counted


def main() -> None:
    assert trl.__version__.startswith("1."), trl.__version__
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.set_num_interop_threads(1)
    *options, settings_file = sys.argv[1:]
    with open(settings_file) as file:
        settings = json.load(file)
    run = tool.bare()  # the worker before any thread
    with tempfile.TemporaryDirectory() as folder:
        trainer(options, settings, folder, run).train()


if __name__ == "__main__":
    main()
