"""The cold start: what is read, what is skipped, what weighs how much, and in which order it comes."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.chat import ChatFormat
from rocstar.train.learner.cold_start import Conversation, batches, examples, read_conversations, tokenise
from rocstar.train.recipe.errors import ConfigError


def conversation(length: int, *, digits: int = 0) -> Conversation:
    """One prompt token, then loss tokens; the last `digits` of them are the digit 7."""
    return Conversation(ids=[1, *[2] * (length - 1 - digits), *[7] * digits], mask=[0, *[1] * (length - 1)])


lengths = st.lists(st.integers(2, 40), min_size=1, max_size=80)


@given(sizes=lengths, batch_size=st.integers(1, 9), steps=st.integers(0, 40), seed=st.integers(0, 3))
def test_an_epoch_shows_every_conversation_once(sizes: list[int], batch_size: int, steps: int, seed: int) -> None:
    conversations = [conversation(n) for n in sizes]
    plan = batches(conversations, batch_size=batch_size, steps=steps, rng=random.Random(seed))
    assert len(plan) == steps
    assert all(1 <= len(batch) <= batch_size for batch in plan)
    per_epoch = -(-len(sizes) // batch_size)
    for begin in range(0, steps - per_epoch + 1, per_epoch):
        epoch = [id(c) for batch in plan[begin : begin + per_epoch] for c in batch]
        assert Counter(epoch) == Counter(map(id, conversations))


def test_a_batch_is_a_sample_of_all_lengths_in_another_order_every_epoch() -> None:
    """Its mean length is that of the data, as near as chance has it: sorted ones were up to 9 sigma off."""
    conversations = [conversation(2 + k) for k in range(640)]
    plan = batches(conversations, batch_size=32, steps=40, rng=random.Random(0))
    means = [sum(len(c.ids) for c in batch) / 32 for batch in plan]
    expected, sigma = 1 + 641 / 2, 640 / 12**0.5 / 32**0.5
    assert max(abs(mean - expected) for mean in means) < 4 * sigma
    assert means[:20] != means[20:]


@given(sizes=lengths, digits=st.integers(0, 1), weight=st.floats(0, 3))
def test_weights_are_the_mean_plus_the_mean_over_digits(sizes: list[int], digits: int, weight: float) -> None:
    batch = [conversation(n, digits=digits) for n in sizes]
    made = examples(batch, frozenset({7}), weight)
    total, num_digits = sum(n - 1 for n in sizes), digits * len(sizes)
    for c, example in zip(batch, made, strict=True):
        assert example.mask.tolist() == c.mask and example.weights[0] == 0
        for token, w in zip(c.ids[1:], example.weights[1:], strict=True):
            expected = 1 / total + (weight / num_digits if token == 7 and num_digits else 0.0)
            assert w == pytest.approx(expected)
    whole = sum(sum(example.weights) for example in made)
    assert whole == pytest.approx(1.0 + (weight if num_digits else 0.0))


# ---- reading ----

TALK = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "<answer>2</answer>"}]


def test_rows_are_read_and_blank_lines_skipped(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    separator = "a\u2028b"  # a line break for str.splitlines, not for JSONL
    rows = [{"messages": TALK}, {"messages": [{"role": "user", "content": separator}], "tools": []}]
    path.write_text("\n" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    assert read_conversations(path) == [{"messages": TALK, "tools": None}, rows[1]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 has no 'messages'"),
        ('{"messages": []}', "line 2 has no 'messages'"),
        ('{"messages": "hi"}', "line 2 has no 'messages'"),
        ('{"messages": [{"content": "x"}]}', "line 2: message 1 is no object with a 'role'"),
        ('{"messages": ["x"]}', "line 2: message 1 is no object with a 'role'"),
        ('{"messages": [{"role": "user", "content": null}]}', "line 2: message 1 (user) has no content"),
        ('{"messages": [{"role": "user", "content": 5}]}', "line 2: message 1 (user): content is 5"),
        ('{"messages": [{"role": "user", "content": [5]}]}', "line 2: message 1 (user): content has 5"),
        ('{"messages": [{"role": "human", "content": "x"}]}', "line 2: message 1 has role 'human'"),
        ('{"messages": [{"role": "user", "content": "x"}], "tools": 1}', "line 2: tools is 1"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": TALK}) + "\n" + line + "\n")
    with pytest.raises(ConfigError) as refused:
        read_conversations(path)
    assert words in str(refused.value) and str(path) in str(refused.value)


def test_a_row_without_tools_shows_those_of_the_recipe_or_none(tmp_path: Path, chat: ChatFormat) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": TALK}) + "\n")
    shown = []
    for tools in ("recipe", "row"):
        rows = read_conversations(path, tools)
        (only,), _ = tokenise(rows, chat, max_tokens=2000)
        shown.append(chat.decode(only.ids))
    name = chat.tools[0]["function"]["name"]
    assert [name in text for text in shown] == [True, False]


@pytest.mark.parametrize(("content", "words"), [(b"\n\n", "holds no conversation"), (b"\xff\xfe{}", "cannot read")])
def test_a_file_that_is_empty_or_no_text(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_conversations(path)


def test_long_and_silent_conversations_are_skipped_and_counted(chat: ChatFormat) -> None:
    long = [TALK[0], {"role": "assistant", "content": "2" * 500}]
    rows = [{"messages": m, "tools": None} for m in (TALK, long, TALK[:1], TALK)]
    kept, skipped = tokenise(rows, chat, max_tokens=300)
    assert len(kept) == 2 and skipped == 2
    learnt = [t for t, m in zip(kept[0].ids, kept[0].mask, strict=True) if m]
    assert chat.decode(learnt) == "<answer>2</answer><|im_end|>"
    with pytest.raises(ConfigError, match=r"fits sft\.max_tokens = 10; raise it"):
        tokenise(rows, chat, max_tokens=10)
