"""Templates and tokenizers that do not fit a conversation with tools are refused, with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocstar.engine.chat.boundaries import ChatError, Rendering, find_boundaries
from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.tools.python import PYTHON_SCHEMA
from tests.fakes.scripted_policy import ByteTokenizer

CALL = {"function": {"name": "f", "arguments": {"code": "1"}}}
FOR_EACH = "{% for m in messages %}"
BASE = "{{ tools | length if tools else 0 }}" + FOR_EACH
GEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
END = "{% endfor %}" + GEN
TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
ESCAPED = "(m.content | tojson if m.role == 'tool' else m.content)"
IN_USER = TURN.replace("m.role", "('user' if m.role == 'tool' else m.role)")

UPSTREAM = Path(__file__).parents[1] / "templates"
QWEN3 = (UPSTREAM / "qwen3.jinja").read_text()
# Every turn's thinking is dropped, the last one's too, as DeepSeek-R1's template does.
FORGETS = BASE + IN_USER.replace("m.content", "(m.content.split('</think>\n\n') | last)") + END

REFUSED = {
    "SmolLM2's own": ((UPSTREAM / "smollm2.jinja").read_text(), "ignores tools: use a bundled template"),
    "ignores tools": (FOR_EACH + IN_USER + END, "ignores tools"),
    "fails": ("{{ raise_exception('only alternating roles') }}", "failed to render: only alternating roles"),
    "syntax": ("{% if %}", "failed to render"),
    "undefined": (BASE + "{{ m.name.first.second }}{% endfor %}", "failed to render"),
    "hides the user": (BASE + IN_USER.replace("m.content", "m.role") + END, "user's content"),
    "shows the assistant twice": (
        BASE + "{{ m.content if m.role == 'assistant' else '' }}" + IN_USER + END,
        "the assistant's content exactly once",
    ),
    "hides tools": (
        BASE + "{% if m.role != 'tool' %}" + IN_USER + "{% endif %}{% endfor %}" + GEN,
        "a tool result's content exactly once",
    ),
    "escapes tool results": (
        BASE + IN_USER.replace("m.content", ESCAPED) + END,
        "a tool result's content exactly once and unchanged",
    ),
    "escapes HTML": (BASE + IN_USER.replace("m.content", "m.content | e") + END, "unchanged"),
    "thinks in the last turn only": (
        BASE
        + "{{ '<|im_start|>' + m.role + '\n' }}"
        + "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
        + "{{ m.content + '<|im_end|>' }}{% endfor %}"
        + GEN,
        "does not begin like an assistant turn",
    ),
    "forgets old turns": (
        BASE + "{% if loop.last or m.role != 'assistant' %}" + IN_USER + "{% endif %}{% endfor %}" + GEN,
        "rewrites earlier text when a tool result is added",
    ),
    "ends no turn": (BASE + TURN.replace("<|im_end|>", "") + END, "could not end its turn"),
    "counts messages": (
        "{{ messages | length }}{{ tools }}" + FOR_EACH + IN_USER + END,
        "rewrites earlier text when an assistant turn is added",
    ),
    "generation prompt elsewhere": (
        "{% if add_generation_prompt %}go{% endif %}" + BASE + IN_USER + "{% endfor %}",
        "rewrites earlier text when the generation prompt is added",
    ),
    "counts results": (
        BASE + IN_USER + "{% endfor %}{% if messages[-1].role == 'tool' %}{{ messages | length }}{% endif %}" + GEN,
        "one tool result differently from two",
    ),
    "closes after tools": (
        BASE + IN_USER + "{% endfor %}{% if messages[-1].role != 'tool' %}" + GEN + "{% endif %}",
        "does not open a turn",
    ),
    "tires in the second round": (
        BASE + IN_USER + "{% if loop.index == 5 %}again{% endif %}{% endfor %}" + GEN,
        "second round",
    ),
}


@pytest.mark.parametrize("thinking", ["refuse", "keep"])
@pytest.mark.parametrize("case", REFUSED)
def test_unfit_template_is_refused_with_its_reason(case: str, thinking: Any) -> None:
    template, reason = REFUSED[case]
    with pytest.raises(ChatError, match=reason):
        ChatFormat(ByteTokenizer(), template, [PYTHON_SCHEMA], thinking=thinking)


# ---- thinking ----


@pytest.mark.parametrize("template", [QWEN3, FORGETS])
def test_template_that_changes_thinking_needs_a_policy(template: str) -> None:
    with pytest.raises(ChatError, match=r"(?s)changes the thinking.*qwen3.*thinking = 'keep'"):
        find_boundaries(Rendering(template), [PYTHON_SCHEMA])
    kept = find_boundaries(Rendering(template), [PYTHON_SCHEMA], thinking="keep")
    assert (kept.header, kept.opening) == ("<|im_start|>assistant\n", "")


def test_policy_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="thinking = 'strip' is neither of keep, refuse"):
        find_boundaries(Rendering(QWEN3), [PYTHON_SCHEMA], thinking="strip")  # type: ignore[arg-type]


# ---- the difference ----


def test_refusal_shows_the_difference() -> None:
    """Nothing else: not the lines that agree far from it, and not what is appended."""
    with pytest.raises(ChatError) as caught:
        find_boundaries(Rendering(REFUSED["forgets old turns"][0]), [PYTHON_SCHEMA])
    assert str(caught.value).splitlines() == [
        "the chat template rewrites earlier text when a tool result is added",
        "--- expected",
        "+++ rendered",
        "@@ -1,5 +1,5 @@",
        " 1<|im_start|>user",
        " (user marker: \"1 < 2\" & '\\'",
        "- end)<|im_end|><|im_start|>assistant",
        "-(assistant marker: \"1 < 2\" & '\\'",
        "- end)<|im_end|> (no newline)",
        "+ end)<|im_end|><|im_start|>user",
        "+(tool 1 marker: \"1 < 2\" & '\\'",
        "+ end)<|im_end|><|im_start|>user",
    ]
    with pytest.raises(ChatError) as caught:
        find_boundaries(Rendering(QWEN3), [PYTHON_SCHEMA])
    assert {"-<think>", "-</think>"} <= set(str(caught.value).splitlines())


def test_the_pieces_of_the_refused_make_a_fit_template() -> None:
    """So that each row above is refused for what it changes."""
    boundaries = find_boundaries(Rendering(BASE + IN_USER + END), [PYTHON_SCHEMA])
    assert (boundaries.header, boundaries.end) == ("<|im_start|>assistant\n", "<|im_end|>")


@pytest.mark.parametrize("special", [("<|other|>",), ()])
def test_turn_must_end_with_a_special_token(special: tuple[str, ...]) -> None:
    with pytest.raises(ChatError, match="could not end its turn"):
        ChatFormat(ByteTokenizer(special=special), load_template("compact", None), [PYTHON_SCHEMA])


def only_with_calls(change: Callable[[str], str]) -> ChatFormat:
    """A fit template that misbehaves for assistant messages with tool_calls, which only data sets have."""
    template = "{{ tools | length if tools else 0 }}" + FOR_EACH
    called = IN_USER.replace("m.content", "m.content + call")
    template += (
        "{% if m.tool_calls %}{% set call %}{% for c in m.tool_calls %}<tool_call>"
        "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>"
        "{% endfor %}{% endset %}" + change(called) + "{% else %}" + IN_USER + "{% endif %}{% endfor %}" + GEN
    )
    return ChatFormat(ByteTokenizer(), template, [PYTHON_SCHEMA])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda turn: turn.replace("<|im_end|>", ""), "begins or ends an assistant's turn with tool calls"),
        (lambda turn: turn.replace("<|im_start|>", "<|im_start|>:"), "with tool calls differently"),
        (
            lambda turn: turn.replace("m.content", "('now' if loop.last else 'then')"),
            "rewrites earlier text when message 3 is added",
        ),
    ],
)
def test_conversation_that_the_template_rewrites_is_refused(change: Any, reason: str) -> None:
    calls: dict[str, Any] = {"role": "assistant", "content": "c", "tool_calls": [CALL]}
    messages = [{"role": "user", "content": "Q"}, calls, {"role": "tool", "content": "1"}]
    with pytest.raises(ChatError, match=reason):
        only_with_calls(change).encode_conversation([*messages, {"role": "assistant", "content": "A"}])


def test_templates_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("é", encoding="utf-8")
    assert load_template(str(tmp_path / "mine.jinja"), None) == "é"
    assert load_template("model", "own") == "own"
    assert "tool_response" in load_template("compact", "own")
    with pytest.raises(ChatError, match="no chat template"):
        load_template("model", None)
    with pytest.raises(ChatError, match="nor one of compact, llama3, qwen3, rstar2, smollm2, nor a file"):
        load_template("rstar3", None)
