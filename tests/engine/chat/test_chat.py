"""Boundaries, prompts and masks: append-only, and content never becomes control."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.boundaries import Rendering
from rocstar.engine.chat.chat import ChatFormat, load_template, special_tokens
from rocstar.engine.tools.python import PYTHON_SCHEMA
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer

HEADERS = ("<|start_header_id|>", "<|end_header_id|>")
LLAMA_TOKENS = ("<|end_of_text|>", "<|begin_of_text|>", *HEADERS, "<|eot_id|>")

# Headers, bos and trimmed contents, as Llama 3's own does it: each result is a turn of its own.
LLAMA = """
{{- bos_token }}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython' }}
{%- for tool in tools or [] %}{{- '\\n\\n' }}{{- tool | tojson(indent=4) }}{% endfor %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + (message.content | trim) }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
        {{- '</tool_call>' }}
    {%- endfor %}{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

UPSTREAM = Path(__file__).parents[1] / "templates"
RSTAR2_RECIPE = Path(__file__).parents[3] / "train" / "recipes" / "rstar2_14b.toml"
QWEN = (UPSTREAM / "qwen2.5.jinja").read_text(encoding="utf-8")
QWEN3 = (UPSTREAM / "qwen3.jinja").read_text(encoding="utf-8")
TEMPLATES = {
    **{name: load_template(name, None) for name in ("rstar2", "compact", "qwen3", "llama3", "smollm2")},
    "upstream qwen2.5": QWEN,
    "upstream qwen3": QWEN3,
    "trims": LLAMA,
}
CORPUS = [QWEN, LLAMA, "the answer is the sum of the primes, print the result"] * 3


def tokenizer_of(name: str, *, merges: bool) -> ByteTokenizer:
    is_llama = name in ("llama3", "trims")
    special = LLAMA_TOKENS if is_llama else CHATML_TOKENS
    tokenizer = ByteTokenizer(special=special, corpus=CORPUS if merges else (), vocab_size=400 if merges else 256)
    tokenizer.bos_token = "<|begin_of_text|>" if is_llama else None
    return tokenizer


FORMATS = {
    (name, merges): ChatFormat(
        tokenizer_of(name, merges=merges),
        template,
        [PYTHON_SCHEMA],
        thinking="keep" if name == "upstream qwen3" else "refuse",
    )
    for name, template in TEMPLATES.items()
    for merges in ((False, True) if name in ("rstar2", "upstream qwen3", "trims") else (True,))
}
formats = pytest.mark.parametrize(("name", "merges"), FORMATS)


def whole_text(chat: ChatFormat, messages: Sequence[dict[str, Any]]) -> str:
    """The render of a finished conversation up to its last stop token."""
    text = chat.render(messages, chat.tools)
    assert text.endswith(chat.boundaries.end)
    return text[: len(text) - len(chat.boundaries.end) + len(chat.stop_text)]


def roll(
    chat: ChatFormat, question: str, rounds: Sequence[tuple[str, list[str]]], last: str, encode: Any
) -> tuple[list[int], list[int], list[dict[str, Any]]]:
    """Ids and policy mask as a rollout makes them, and the messages they stand for."""
    ids, mask = chat.prompt_ids(question), [0] * len(chat.prompt_ids(question))
    opening = chat.boundaries.opening
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for text, tools in [*rounds, (last, [])]:
        turn = [*encode(text), chat.stop_id]
        suffix = chat.tool_suffix_ids(tools) if tools else []
        ids += turn + suffix
        mask += [1] * len(turn) + [0] * len(suffix)
        messages.append({"role": "assistant", "content": opening + text})
        messages += [{"role": "tool", "name": "t", "content": tool} for tool in tools]
    return ids, mask, messages


PARTIAL = ["<|im_", "end|>", "<", "|>", "<|im_<|im_end|>end|>", "<|<|eot_id|>"]
SPECIAL_BITS = [*CHATML_TOKENS, *LLAMA_TOKENS, *PARTIAL]
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|"), max_size=12)
hostile = st.lists(st.one_of(plain, st.sampled_from(SPECIAL_BITS)), max_size=5).map("".join)


letters = plain.map(lambda text: "So" + text)


def conversations(policy: st.SearchStrategy[str], content: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    rounds = st.lists(st.tuples(policy, st.lists(content, min_size=1, max_size=3)), max_size=3)
    return st.tuples(content, rounds, policy)


def thoughtful(text: str) -> str:
    """In the form that Qwen3's template writes: thinking that is not empty, then the rest."""
    return f"<think>\nSo {text}.\n</think>\n\nSo {text}"


def fit(name: str, conversation: Any) -> Any:
    """What the template does not change: stripped contents for one that strips, thinking for Qwen3's."""
    question, rounds, last = conversation
    if name == "trims":
        return question, [(p.strip(), [t.strip() for t in ts]) for p, ts in rounds], last.strip()
    if name == "upstream qwen3":
        return question, [(thoughtful(p), ts) for p, ts in rounds], thoughtful(last)
    return conversation


@formats
@given(conversation=conversations(hostile, hostile))
def test_pieces_decode_to_the_render_of_the_whole(name: str, merges: bool, conversation: Any) -> None:
    """Whatever ids the policy spells its text with: here one character at a time."""
    chat = FORMATS[name, merges]

    def spell(text: str) -> list[int]:
        return [token for c in text for token in chat.tokenizer.encode(c, add_special_tokens=False)]

    ids, _, messages = roll(chat, *fit(name, conversation), spell)
    assert chat.decode(ids) == whole_text(chat, messages)


@formats
@given(conversation=conversations(letters, plain))
def test_canonical_pieces_are_the_tokens_of_the_render(name: str, merges: bool, conversation: Any) -> None:
    """No special token in a content, and a policy that begins where the tokenizer cuts anyway."""
    chat = FORMATS[name, merges]
    encode = chat.tokenizer.encode
    ids, _, messages = roll(chat, *fit(name, conversation), encode)
    assert ids == encode(whole_text(chat, messages), add_special_tokens=False)


@given(conversation=conversations(plain, plain))
def test_without_merges_any_text_is_canonical(conversation: Any) -> None:
    chat = FORMATS["rstar2", False]
    ids, _, messages = roll(chat, *conversation, chat.tokenizer.encode)
    assert ids == chat.tokenizer.encode(whole_text(chat, messages), add_special_tokens=False)


@formats
@given(content=hostile, others=st.lists(hostile, max_size=2))
def test_content_never_becomes_a_special_token(name: str, merges: bool, content: str, others: list[str]) -> None:
    chat = FORMATS[name, merges]
    assert isinstance(chat.tokenizer, ByteTokenizer)
    special = {chat.tokenizer.id_of(t) for t in special_tokens(chat.tokenizer)}
    assert len(special) >= 3

    def specials(ids: list[int]) -> list[int]:
        return [token for token in ids if token in special]

    assert specials(chat.prompt_ids(content)) == specials(chat.prompt_ids("harmless"))
    texts = [content, *others]
    assert specials(chat.tool_suffix_ids(texts)) == specials(chat.tool_suffix_ids(["harmless"] * len(texts)))
    calls = [{"function": {"name": "f", "arguments": {"code": content}}}]

    def told(text: str) -> list[dict[str, Any]]:
        said = thoughtful(text) if name == "upstream qwen3" else text
        return [
            {"role": "user", "content": text},
            {"role": "assistant", "content": said, "tool_calls": calls if text == content else calls[:0]},
            {"role": "tool", "content": text},
            {"role": "assistant", "content": said},
        ]

    ids, mask = chat.encode_conversation(told(content))
    assert specials(ids) == specials(chat.encode_conversation(told("harmless"))[0])
    prompts = [chat.prompt_ids("Q", told(text)) for text in (content, "harmless")]
    assert specials(prompts[0]) == specials(prompts[1])
    assert sum(mask) == sum(m for m, token in zip(mask, ids, strict=True) if token not in special) + 2


# ---- thinking ----


def without_thinking(text: str) -> str:
    return re.sub(r"<think>.*?</think>\n\n", "", text, flags=re.DOTALL)


thinks = st.one_of(letters, letters.map(thoughtful))


@given(conversation=conversations(thinks, plain))
def test_kept_thinking_is_all_that_differs_from_the_templates_own_render(conversation: Any) -> None:
    """Qwen3's template adds an empty block to a last turn that did not think."""
    chat = FORMATS["upstream qwen3", False]
    ids, _, messages = roll(chat, *conversation, chat.tokenizer.encode)
    kept, rendered = chat.decode(ids), whole_text(chat, messages)
    assert without_thinking(kept) == without_thinking(rendered)
    assert kept.count("<think>") == sum("<think>" in m["content"] for m in messages)
    assert (kept == rendered) == ("<think>" in messages[-1]["content"])


def test_thinking_is_kept_where_the_template_would_forget_it() -> None:
    """Behind a later question Qwen3's template strips every earlier block; the context had them all."""
    chat = FORMATS["upstream qwen3", False]
    ids, _, messages = roll(chat, "Q", [(thoughtful("a"), ["1"])], thoughtful("b"), chat.tokenizer.encode)
    assert chat.decode(ids) == whole_text(chat, messages)
    asked = [*messages, {"role": "user", "content": "more"}]
    later = chat.render(asked, chat.tools)
    assert (chat.decode(ids).count("<think>"), later.count("<think>")) == (2, 0)
    assert later.startswith(without_thinking(chat.decode(ids)))


@given(conversation=conversations(letters, plain))
def test_bundled_qwen3_writes_the_prompts_of_qwen3s_own(conversation: Any) -> None:
    """Append-only for any turn; the same text as the model's own template where that keeps the thinking."""
    chat, own = FORMATS["qwen3", True], FORMATS["upstream qwen3", True]
    conversation = fit("upstream qwen3", conversation)
    mine, theirs = (roll(c, *conversation, c.tokenizer.encode)[0] for c in (chat, own))
    assert mine == theirs
    for messages in ([{"role": "user", "content": "Q"}], [{"role": "system", "content": "S"}] * 2):
        for tools in (None, chat.tools):
            texts = {c.render(messages, tools, gen=True) for c in (chat, own)}
            assert len(texts) == 1


def test_bundled_smollm2_writes_the_prompts_of_smollm2s_own() -> None:
    own = (UPSTREAM / "smollm2.jinja").read_text(encoding="utf-8")
    system = {"role": "system", "content": "S"}
    told = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    for messages in (told, [system, *told]):
        texts = {Rendering(t)(messages, None, gen=True) for t in (own, TEMPLATES["smollm2"])}
        assert len(texts) == 1


def test_half_a_surrogate_is_shown_as_a_question_mark() -> None:
    chat = FORMATS["compact", True]
    assert chat.decode(chat.prompt_ids("a\ud83db")) == chat.decode(chat.prompt_ids("a?b"))
    assert "x?" in chat.decode(chat.tool_suffix_ids(["x\udc00"]))


@formats
@given(conversation=conversations(letters, hostile))
def test_finished_conversation_encodes_like_its_rollout(name: str, merges: bool, conversation: Any) -> None:
    """Same boundaries, and loss on exactly what the policy wrote with its stop token (behind an opening)."""
    chat = FORMATS[name, merges]
    ids, mask, messages = roll(chat, *fit(name, conversation), chat.tokenizer.encode)
    assert chat.encode_conversation(messages) == (ids, mask)


def masked_texts(chat: ChatFormat, messages: list[dict[str, Any]], **options: Any) -> list[str]:
    """The stretches with loss, as text."""
    ids, mask = chat.encode_conversation(messages, **options)
    assert len(ids) == len(mask) and set(mask) <= {0, 1}
    out: list[list[int]] = []
    for k, (token, m) in enumerate(zip(ids, mask, strict=True)):
        if m:
            if not mask[k - 1]:
                out.append([])
            out[-1].append(token)
    return [chat.decode(part) for part in out]


CALL = {"function": {"name": "f", "arguments": {"code": "print(1)", "input": ""}}}


@pytest.mark.parametrize("name", ["rstar2", "compact", "qwen3", "smollm2", "upstream qwen2.5"])
def test_tool_calls_of_messages_are_what_the_policy_would_write(name: str) -> None:
    chat = FORMATS[name, True]
    wrote = '<tool_call>\n{"name": "f", "arguments": {"code": "print(1)", "input": ""}}\n</tool_call>'
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "I count.", "tool_calls": [CALL]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "said after the last assistant: no part of the example"},
    ]
    assert masked_texts(chat, messages) == [f"I count.\n{wrote}<|im_end|>", "A<|im_end|>"]
    assert "no part" not in chat.decode(chat.encode_conversation(messages)[0])
    without = masked_texts(chat, messages, tools=[])
    assert without == masked_texts(chat, messages)
    if not name.startswith("upstream"):
        messages[2] = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
        assert masked_texts(chat, messages)[0] == f"{wrote}\n{wrote}<|im_end|>"
        as_text = {"function": {"name": "f", "arguments": '{"code": "print(1)", "input": ""}'}}
        messages[2] = {"role": "assistant", "content": "", "tool_calls": [as_text]}
        assert masked_texts(chat, messages)[0] == f"{wrote}<|im_end|>"


def test_opening_is_context_where_the_message_begins_with_it() -> None:
    chat = FORMATS["rstar2", False]
    user = {"role": "user", "content": "Q"}
    assert masked_texts(chat, [user, {"role": "assistant", "content": "<reason>r"}]) == ["r<|im_end|>"]
    assert masked_texts(chat, [user, {"role": "assistant", "content": "r"}]) == ["r<|im_end|>"]


def test_conversation_without_an_assistant_is_empty() -> None:
    assert FORMATS["compact", True].encode_conversation([{"role": "user", "content": "Q"}]) == ([], [])


def test_turn_text_drops_the_stop_token_only() -> None:
    chat = FORMATS["compact", True]
    ids = chat.tokenizer.encode("ab", add_special_tokens=False)
    assert chat.turn_text([*ids, chat.stop_id]) == "ab" == chat.turn_text(ids)
    assert chat.turn_text([]) == "" == chat.turn_text([chat.stop_id])
    assert chat.stop_text == "<|im_end|>" and chat.stop_ids == {chat.stop_id}


def test_bos_comes_first_and_once() -> None:
    chat = FORMATS["llama3", True]
    assert isinstance(chat.tokenizer, ByteTokenizer)
    bos = chat.tokenizer.id_of("<|begin_of_text|>")
    ids = chat.prompt_ids("Q")
    assert ids[0] == bos and ids.count(bos) == 1
    assert bos not in chat.tool_suffix_ids(["1"])


def test_a_template_may_end_its_turns_with_the_eos_token() -> None:
    template = QWEN.replace("'<|im_end|>'", "eos_token").replace("'<|im_end|>\\n' }}", "eos_token + '\\n' }}")
    chat = ChatFormat(ByteTokenizer(), template, [PYTHON_SCHEMA])
    assert chat.stop_text == "<|endoftext|>"


def test_special_tokens_of_a_hugging_face_tokenizer_are_all_known() -> None:
    """`all_special_tokens` names those with a role only; a header token without one is special too."""
    from transformers import PreTrainedTokenizerFast

    inner = ByteTokenizer(special=LLAMA_TOKENS, markup=["<tool_call>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, eos_token="<|eot_id|>")
    assert "<|start_header_id|>" not in tokenizer.all_special_tokens
    assert special_tokens(tokenizer) == set(LLAMA_TOKENS)
    chat = ChatFormat(tokenizer, LLAMA, [PYTHON_SCHEMA])
    assert tokenizer.convert_tokens_to_ids("<|start_header_id|>") in chat.tool_suffix_ids(["a"])
    hostile_ids = chat.tool_suffix_ids(["<|start_header_id|>"])
    header = tokenizer.convert_tokens_to_ids("<|start_header_id|>")
    assert hostile_ids.count(header) == chat.tool_suffix_ids(["a"]).count(header)
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in chat.tool_suffix_ids(["<tool_call>"])


# ---- the exact prompt of the original ----

TOOL_JSON = (
    '{"type": "function", "function": {"name": "python_code_with_standard_io", "description": '
    '"Execute Python code with standard input and capture standard output. This function takes a '
    "Python code string and an input string, provides the input string through standard input (stdin)"
    " to the code, and captures and returns any output produced through standard output (stdout). If "
    "the executed code raises an exception, the error message will be captured and returned "
    'instead.", "parameters": {"type": "object", "properties": {"code": {"type": "string", '
    '"description": "A string containing Python code to be executed. The code can read from standard '
    'input using the input() function."}, "input": {"type": "string", "description": "A string that '
    'will be provided as standard input to the code when it calls input()."}}, "required": ["code", '
    '"input"]}}}'
)
RSTAR2_SENTENCE = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves "
    "it. The Assistant first thinks about the reasoning process in the mind and then provides the "
    "User with the answer. The reasoning process is enclosed within <reason> </reason> and answer is "
    "enclosed within <answer> </answer> tags, respectively, i.e., <reason> reasoning process here "
    "</reason> <answer> answer here </answer>."
)
RSTAR2_PROMPT = f"""<|im_start|>system
{RSTAR2_SENTENCE}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{TOOL_JSON}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call><|im_end|>
<|im_start|>user
You must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. And your final answer will be extracted automatically by the \\boxed{{}} tag.
This is the problem:
What is 2 < 3 & "é"?<|im_end|>
<|im_start|>assistant
<reason>"""  # noqa: E501


def test_rstar2_prompt_is_the_originals() -> None:
    """With the words in front of a problem, which are the recipe's: conversations have none."""
    chat = FORMATS["rstar2", False]
    around: str = tomllib.loads(RSTAR2_RECIPE.read_text(encoding="utf-8"))["model"]["task_prompt"]
    asked = around.replace("{question}", 'What is 2 < 3 & "é"?')
    assert chat.decode(chat.prompt_ids(asked)) == RSTAR2_PROMPT
    assert "boxed" not in chat.decode(chat.prompt_ids("Q"))
    assert chat.boundaries.opening == "<reason>"


def test_rstar2_results_share_one_user_turn() -> None:
    chat = FORMATS["rstar2", False]
    assert chat.decode(chat.tool_suffix_ids(["R1", "R2"])) == (
        "\n<|im_start|>user\n<tool_response>\nR1\n</tool_response>\n<tool_response>\nR2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<reason>"
    )


def test_rstar2_takes_another_system_message() -> None:
    messages = [{"role": "system", "content": "SYS"}, {"role": "user", "content": "Q"}]
    text = Rendering(TEMPLATES["rstar2"])(messages, None)
    assert text.startswith("<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n")
    assert "# Tools" not in text


def test_a_prompt_is_the_callers_own_list() -> None:
    """Trajectories append to it; a sibling must not see that."""
    chat = FORMATS["rstar2", False]
    first = chat.prompt_ids("Q")
    first.append(7)
    assert chat.prompt_ids("Q") == first[:-1]


@formats
def test_the_constant_ends_of_a_suffix_are_ids(name: str, merges: bool) -> None:
    chat = FORMATS[name, merges]
    asked: list[str] = []
    encode = chat.tokenizer.encode

    def noted(text: str, **options: Any) -> list[int]:
        asked.append(text)
        return encode(text, **options)

    b = chat.boundaries
    whole = encode(b.end[len(chat.stop_text) :] + b.before_tools + "So 42" + b.after_tools)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat.tokenizer, "encode", noted)
        assert chat.tool_suffix_ids(["So 42"]) == whole
    assert len(asked) == 1 and not any(token in asked[0] for token in special_tokens(chat.tokenizer))


def test_a_tokenizer_that_marks_where_a_text_begins_encodes_the_whole_suffix() -> None:
    class Marking(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            is_word = text[:1].isalpha()
            return [*super().encode(" " if is_word else ""), *super().encode(text)]

    chat = ChatFormat(Marking(special=CHATML_TOKENS), load_template("compact", None), [PYTHON_SCHEMA])
    b = chat.boundaries
    text = b.end[len(chat.stop_text) :] + b.before_tools + "1" + b.after_tools
    assert chat.tool_suffix_ids(["1"]) == chat.tokenizer.encode(text, add_special_tokens=False)


BODIES = [["42"], ["So 42\nand é"], ["R1", "R2"], ["a b", "", "c\n\nd"], ["</tool_response>"]]


@formats
@pytest.mark.parametrize("texts", BODIES)
def test_the_tokens_of_results_are_told_from_the_templates(name: str, merges: bool, texts: list[str]) -> None:
    """They read the results, and at most white space of the template that a token holds too."""
    chat = FORMATS[name, merges]
    ids = chat.tool_suffix_ids(texts)
    inside = [token for token, is_body in zip(ids, chat.body_mask(ids), strict=True) if is_body]
    assert re.sub(r"\s", "", chat.decode(inside)) == re.sub(r"\s", "", "".join(texts))
    assert not any(chat.body_mask(chat.tool_suffix_ids([""])))
