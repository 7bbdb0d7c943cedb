"""A cold start that was ended inside goes on from its checkpoint and becomes the one that never ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rocstar.engine.chat.chat import ChatFormat
from rocstar.train.learner import checkpoint
from rocstar.train.learner.checkpoint_writer import Order
from rocstar.train.learner.cold_start import run_cold_start
from rocstar.train.learner.model_io import load_model
from rocstar.train.learner.scratch import build_model
from rocstar.train.learner.team import LearnerTeam
from rocstar.train.learner.world import World
from rocstar.train.loop import tell_saved
from rocstar.train.recipe.config import CheckpointConfig, Recipe, SftConfig
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.record.callbacks import Listeners
from rocstar.train.record.metrics import MetricsWriter, read_metrics
from rocstar.train.record.run_directory import cold_start_of
from rocstar.train.tasks.chat_format import conversation_format

from ...fakes.tiny import SCRATCH, assert_same_weights

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"{k} + 1"},
            {"role": "assistant", "content": f"<answer>{k + 1}</answer>"},
        ],
        "tools": None,
    }
    for k in range(12)
]


class Console:
    """Hears nothing, and ends the process at a step."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at = dies_at

    def on_cold_start(self, step: int, total: int, metrics: Any) -> None:
        if step == self.dies_at:
            raise KeyboardInterrupt


async def learn(
    chat: ChatFormat,
    run_dir: Path,
    thread: ThreadPoolExecutor,
    *,
    optimizer: Any = "muon",
    dies_at: int = 0,
    saved: Path | None = None,
    rows: list[dict[str, Any]] = ROWS,
    template: str = "",
) -> PreTrainedModel:
    recipe = Recipe(
        sft=SftConfig(
            data="chat.jsonl",
            template=template,
            steps=8,
            batch_size=5,
            lr=1e-2,
            warmup_steps=3,
            optimizer=optimizer,
            digit_weight=1.0,
        ),
        checkpoint=CheckpointConfig(sft_every=3),
    )
    tokenizer = cast(PreTrainedTokenizerBase, chat.tokenizer)
    model = load_model(str(saved), "float32") if saved else build_model(SCRATCH, len(tokenizer), seed=1)
    team = LearnerTeam(model, World(rank=0, size=1), thread)
    keep = checkpoint.load_progress(saved)["metrics_bytes"] if saved else None
    listeners = Listeners(cast(Any, Console(dies_at)))
    with MetricsWriter(run_dir / "metrics.jsonl", keep_bytes=keep) as metrics:
        try:
            await run_cold_start(team, recipe, chat, rows, tokenizer, listeners, metrics, saved)
        finally:
            team.close()
    return model


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
async def test_it_goes_on_with_the_same_bits(
    chat: ChatFormat, tmp_path: Path, thread: ThreadPoolExecutor, optimizer: str
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    expected = await learn(chat, whole, thread, optimizer=optimizer)
    with pytest.raises(KeyboardInterrupt):
        await learn(chat, broken, thread, optimizer=optimizer, dies_at=8)
    saved = checkpoint.latest(cold_start_of(broken))
    assert saved is not None and saved.name == "step_6"
    assert [path.name for path in saved.parent.iterdir()] == ["step_6"], "the one before is gone"
    assert len(read_metrics(broken / "metrics.jsonl")) == 7
    found = await learn(chat, broken, thread, optimizer=optimizer, saved=saved)
    assert_same_weights(found, expected)
    rows = [read_metrics(folder / "metrics.jsonl") for folder in (broken, whole)]
    for row, other_row in zip(*rows, strict=True):
        assert row | {"time_s": 0} == other_row | {"time_s": 0}


async def test_the_loss_falls_at_every_step(chat: ChatFormat, tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    await learn(chat, tmp_path, thread, optimizer="adamw")
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert rows[-1]["loss/sft"] < rows[0]["loss/sft"] - 1
    assert all(row["optim/grad_norm"] > 0 for row in rows)


def test_its_template_is_its_own(chat: ChatFormat, tmp_path: Path) -> None:
    def shown(template: str) -> ChatFormat:
        return conversation_format(Recipe(sft=SftConfig(template=template)), chat)

    assert shown("") is chat
    text = shown("qwen3").decode(shown("qwen3").messages_ids(ROWS[0]["messages"][:1]))
    assert "boxed" in chat.decode(chat.messages_ids(ROWS[0]["messages"][:1])) and "boxed" not in text
    with pytest.raises(ConfigError, match=r"sft\.template = 'llama3': an assistant turn ends with"):
        shown("llama3")
    other_end = tmp_path / "other_end.jinja"
    other_end.write_text(chat.template.replace("<|im_end|>", "<|endoftext|>"))
    with pytest.raises(ConfigError, match=r"a turn ends with '<\|endoftext\|>'"):
        shown(str(other_end))
    with pytest.raises(ConfigError, match=r"sft\.template = 'gone\.jinja'"):
        shown("gone.jinja")


async def test_it_learns_the_conversations_in_its_own_template(
    chat: ChatFormat, tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    digests = []
    for template in ("", "qwen3"):
        folder = tmp_path / f"t{template}"
        folder.mkdir()
        rows = [{**row, "tools": []} for row in ROWS]
        await learn(chat, folder, thread, optimizer="adamw", rows=rows, template=template)
        saved = checkpoint.latest(cold_start_of(folder))
        assert saved is not None
        digests.append(checkpoint.load_progress(saved)["conversations"])
    assert digests[0] != digests[1]


def test_it_is_gone_when_the_runs_first_checkpoint_is_whole(tmp_path: Path) -> None:
    cold = cold_start_of(tmp_path) / "checkpoints" / "step_3"
    cold.mkdir(parents=True)
    order = Order(run_dir=tmp_path, step=0, progress={}, keep_last=1, keep_every=0)
    run: Any = SimpleNamespace(saving=order, directory=tmp_path, listeners=Listeners(cast(Any, Console(0))))
    run.listeners.checkpoint = lambda step, directory: None
    tell_saved(run)
    assert cold.exists(), "nothing else to go on from yet"
    order.directory.mkdir(parents=True)
    (order.directory / checkpoint.COMPLETE).touch()
    tell_saved(run)
    assert not cold_start_of(tmp_path).exists() and order.directory.exists()


async def test_other_conversations_are_refused(chat: ChatFormat, tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    with pytest.raises(KeyboardInterrupt):
        await learn(chat, tmp_path, thread, dies_at=4)
    saved = checkpoint.latest(cold_start_of(tmp_path))
    with pytest.raises(ConfigError, match=r"other conversations than sft\.data gives now.*remove .*sft'"):
        await learn(chat, tmp_path, thread, saved=saved, rows=ROWS[:-1])
