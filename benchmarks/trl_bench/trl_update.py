"""One GRPO update of TRL's GRPOTrainer, again and again, on given rows. Run by the peer's interpreter.

    python trl_update.py MODEL ROWS.json BATCH ACCUMULATION GENERATION_BATCHES LR SWITCHED

Generation is replaced by the given rows; the trainer's own code makes the batches, the loss, backward, clip
and optimizer step. An update is timed from its first batch to the end of its optimizer step: no generation,
no logging. ROWS has BATCH x ACCUMULATION rows; GENERATION_BATCHES says over how many of these batches rows
are padded to one length (`steps_per_generation`). SWITCHED = 1: float32 products in oneDNN, as rocstar's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from wire import Stopwatch, answer, question


class Rows:
    """The rows in turn, as the tensors that TRL's generation makes of what it generated."""

    def __init__(self, rows: list[dict[str, Any]], size: int, share: float) -> None:
        """`size` rows at a time; `share` of a whole update's loss tokens is what TRL divides by then."""
        self.rows, self.size, self.share, self.next = rows, size, share, 0
        self.num_loss_tokens = sum(sum(row["mask"]) for row in rows)
        self.shapes: list[tuple[int, int]] = []

    def take(self) -> dict[str, torch.Tensor]:
        rows = self.rows[self.next : self.next + self.size]
        self.next = (self.next + self.size) % len(self.rows)
        prompts, completions = [row["prompt"] for row in rows], [row["completion"] for row in rows]
        batch = {
            "prompt_ids": _pad(prompts, left=True),
            "prompt_mask": _pad([[1] * len(ids) for ids in prompts], left=True),
            "completion_ids": _pad(completions),
            "completion_mask": _pad([[1] * len(ids) for ids in completions]),
            "tool_mask": _pad([row["mask"] for row in rows]),
            "advantages": torch.tensor([row["advantage"] for row in rows]),
            "num_items_in_batch": torch.tensor(self.num_loss_tokens * self.share),
        }
        shape = batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1]
        self.shapes = [*self.shapes, (len(rows), shape)][-len(self.rows) // self.size :]
        return batch

    def padding_share(self) -> float:
        real = sum(len(row["prompt"]) + len(row["completion"]) for row in self.rows)
        return 1 - real / sum(count * width for count, width in self.shapes)


def _pad(rows: list[list[int]], *, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor(
        [[0] * (width - len(r)) * left + r + [0] * (width - len(r)) * (not left) for r in rows]
    )


class Driver(TrainerCallback):
    """Between two updates the trainer waits here for the parent."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.watch, self.norm, self.dump = rows, Stopwatch(), 0.0, ""

    def wait(self, control: Any) -> None:
        command = question()
        if command is None:
            control.should_training_stop = True
            raise SystemExit
        self.dump = command.get("gradients", "")
        self.watch = Stopwatch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        answer(ready=True)
        self.wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        answer(**self.watch.read(), grad_norm=self.norm, padding_share=self.rows.padding_share())
        self.wait(control)


def trainer(options: list[str], scratch: str) -> GRPOTrainer:
    model_dir, rows_file, batch, accumulation, generation_batches, lr, switched = options
    if switched == "1":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # on this CPU it stays float32: gradients agree
    with open(rows_file) as file:
        rows = json.load(file)
    size = int(batch) * int(generation_batches)
    config = GRPOConfig(
        output_dir=scratch,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=int(batch),
        gradient_accumulation_steps=int(accumulation),
        steps_per_generation=int(generation_batches),
        num_generations=next(n for n in (32, 16, 8, 4, 2) if size % n == 0),
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=float(lr),
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        max_steps=1_000_000,
        logging_strategy="no",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=0,
        seed=0,
    )
    # The trainer divides a batch's sum by num_items * accumulation / generation batches: the update's total.
    source = Rows(rows, size, int(generation_batches) / int(accumulation))
    GRPOTrainer._generate_and_score_completions = lambda self, inputs: source.take()
    made = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * len(rows)),
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    driver = Driver(source)
    made.remove_callback(PrinterCallback)
    made.add_callback(driver)
    _note_gradients(made, driver)
    return made


def _note_gradients(made: GRPOTrainer, driver: Driver) -> None:
    """Keep the norm before clipping; on request write the gradients too."""
    clip = made.accelerator.clip_grad_norm_

    def noted(parameters: Any, *arguments: Any, **named: Any) -> Any:
        if driver.dump:
            model = made.accelerator.unwrap_model(made.model)
            torch.save({name: p.grad for name, p in model.named_parameters()}, driver.dump)
        norm = clip(parameters, *arguments, **named)
        driver.norm = float(norm)
        return norm

    made.accelerator.clip_grad_norm_ = noted


if __name__ == "__main__":
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_num_interop_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer(sys.argv[1:], folder).train()
