"""What messages say is in the prompt, in order; a template that leaves some of it out is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstar.engine.chat.boundaries import ChatError, Rendering, bundled_templates, load_template
from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.chat.shown import ShownCheck
from rocstar.engine.tools.python import PYTHON_SCHEMA
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer

QWEN3 = (Path(__file__).parents[1] / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
LLAMA_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TEMPLATES = {name: load_template(name, None) for name in bundled_templates()}
FORMATS = {
    name: ChatFormat(
        ByteTokenizer(special=LLAMA_TOKENS if name == "llama3" else CHATML_TOKENS), template, [PYTHON_SCHEMA]
    )
    for name, template in TEMPLATES.items()
}
bundled = pytest.mark.parametrize("name", TEMPLATES)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
hostile = st.lists(st.sampled_from([*CHATML_TOKENS, *LLAMA_TOKENS, "a", "<tool_call>", "\n"])).map("".join)
said = texts | hostile
leaves = said | st.integers() | st.booleans() | st.none()
arguments = st.dictionaries(st.sampled_from(["code", "input"]), leaves | st.lists(leaves, max_size=2))


def call_of(name: str, given_: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": given_}}


calls = st.builds(call_of, st.sampled_from(["python", "f"]), arguments)
called = st.builds(
    lambda text, made, results: [
        {"role": "assistant", "content": text, "tool_calls": made},
        *({"role": "tool", "content": result} for result in results),
    ],
    said,
    st.lists(calls, min_size=1, max_size=2),
    st.lists(said, max_size=2),
)
answered = said.map(lambda text: [{"role": "assistant", "content": text}])
exchanges = st.builds(
    lambda question, replies: [{"role": "user", "content": question}, *(m for r in replies for m in r)],
    said,
    st.lists(called | answered, min_size=1, max_size=2),
)
contexts = st.builds(
    lambda system, turns: [*system, *(message for turn in turns for message in turn)],
    said.map(lambda text: [{"role": "system", "content": text}]) | st.just([]),
    st.lists(exchanges, max_size=2),
)


@bundled
@given(context=contexts, question=said)
def test_what_the_messages_say_is_in_the_prompt_in_order(
    name: str, context: list[dict[str, Any]], question: str
) -> None:
    """Letter for letter the template's own render, special tokens inside contents included."""
    chat = FORMATS[name]
    asked = [*context, {"role": "user", "content": question}]
    prompt = chat.decode(chat.prompt_ids(question, context))
    assert prompt == chat.render(asked, chat.tools, gen=True)
    at = 0
    for message in asked:
        for text in (message["content"], *(c["function"]["name"] for c in message.get("tool_calls", []))):
            at = prompt.index(text, at) + len(text)
    ShownCheck(chat.render, chat.tools).check_prompt(asked)


@bundled
def test_a_system_message_takes_the_place_of_the_templates_own_and_the_tools_follow_it(name: str) -> None:
    chat = FORMATS[name]
    plain, own = (
        chat.decode(chat.prompt_ids("Q", context))
        for context in ([], [{"role": "system", "content": "You are a pirate."}])
    )
    head, _, tail = own.partition("You are a pirate.")
    assert tail.index("python_code_with_standard_io") < tail.index("Q")
    assert plain.startswith(head.removesuffix("\n\n")) and "SmolLM" not in own
    assert tail.endswith(plain[plain.rindex("Q") :])


def test_prompts_are_told_apart_by_their_context() -> None:
    """They are remembered: the same question behind another message is another prompt."""
    chat = FORMATS["compact"]
    contexts = [[{"role": "system", "content": text}] for text in ("a", "b")]
    first, second, again = (chat.prompt_ids("Q", context) for context in (*contexts, contexts[0]))
    assert first == again != second and chat.prompt_ids("Q") not in (first, second)


TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
THOUGHT = "<think>\nx\n</think>\n\n4"
SYSTEM = {"role": "system", "content": "a"}
USER, REPLY = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        # "a" occurs in what the template says itself: only a mark shows that the message does not.
        ("a<{{ messages[-1].content }}>", [SYSTEM, USER], "message 1 of 2 (system) not at all"),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            [USER, REPLY, USER],
            "message 2 of 3 (assistant) not at all",
        ),
        ("{{ messages[-1].content }}", [USER, REPLY, USER], "message 1 of 3"),
        (
            "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
            [SYSTEM, USER],
            "message 2 of 2 (user) not at all, or not in its place",
        ),
        (
            TURNS,
            [USER, {**REPLY, "tool_calls": [call_of("f", {})]}, USER],
            "message 2 of 3 (assistant) not at all, or not in its place: 'name-1-0-'",
        ),
        (TURNS, [USER, {**REPLY, "reasoning_content": "so"}, USER], "'(the reasoning_content of message 1)'"),
        (
            "{{ raise_exception('no system role') }}",
            [SYSTEM, USER],
            "failed to render: no system role",
        ),
        ("{{ messages[0].content + 1 }}", [SYSTEM, USER], "failed to render: can only concatenate"),
        (QWEN3, [USER, {**REPLY, "content": THOUGHT}, USER], "(assistant) not as it is written"),
        (TURNS.replace("m.content", "m.content | upper"), [SYSTEM, USER], "1 of 2 (system) not at all"),
        (TURNS.replace("m.content", "m.content | replace('x', 'y')"), [{**SYSTEM, "content": "xx"}, USER],
         "(system) not as it is written: 'xx'"),
    ],
)  # fmt: skip
def test_what_a_template_leaves_out_or_changes_is_refused(
    template: str, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(ChatError) as refused:
        ShownCheck(Rendering(template), [PYTHON_SCHEMA]).check_prompt(messages)
    assert words in str(refused.value), str(refused.value)


def test_trimmed_contents_and_arguments_read_and_written_again_are_shown() -> None:
    trims = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    ShownCheck(Rendering(trims), []).check_prompt([{**SYSTEM, "content": " a \n"}, USER])
    rewrites = (
        TURNS
        + "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        + ("{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}")
    )
    calls = [call_of("f", {"code": 'é\n"1"'})]
    ShownCheck(Rendering(rewrites), []).check_prompt([USER, {**REPLY, "tool_calls": calls}])


def test_a_conversation_is_asked_for_its_form_alone() -> None:
    """What becomes of its texts is found where they are encoded."""
    check = ShownCheck(Rendering(QWEN3), [PYTHON_SCHEMA])
    check.check_form([USER, {**REPLY, "content": THOUGHT}, USER, REPLY])
    hides = Rendering("{{ messages[1].content }}{{ messages[2].content }}")
    with pytest.raises(ChatError, match="message 1 of 3"):
        ShownCheck(hides, []).check_form([SYSTEM, USER, REPLY], [])
