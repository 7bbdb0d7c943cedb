"""The graph of a session: stored ids continue, edits open roots, each sampled token trains once."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from rocstar.engine.chat.chat import ChatFormat, load_template
from rocstar.engine.gateway.graph import MessageGraph, template_messages
from rocstar.engine.gateway.messages import FunctionCall, Message, Request
from rocstar.engine.inference.base import Generation, StopReason
from rocstar.engine.tools.python import PYTHON_SCHEMA
from rocstar.engine.types import Origin
from tests.engine.serve.conftest import LLAMA, TOKENIZER

SYSTEM = Message(role="system", text="Be brief.")
ASK = Message(role="user", text="2+2?")
MORE = Message(role="user", text="And 3+3?")
CALL = FunctionCall(
    id="c1", name="execute_python_code_with_standard_io", arguments='{"code": "print(4)", "input": ""}'
)
RESULT = Message(role="tool", text="4", call_id="c1")
TEMPLATES = pytest.mark.parametrize("template", ["rstar2", "qwen3", "compact", "llama3"])


class Chain:
    """A graph and its samples, in the words of a test."""

    def __init__(self, template: str = "compact", tools: Any = (PYTHON_SCHEMA,)) -> None:
        self.tokenizer = LLAMA if template == "llama3" else TOKENIZER
        self.chat = ChatFormat(self.tokenizer, load_template(template, None), [PYTHON_SCHEMA])
        self.graph, self.tools = MessageGraph(self.chat), tuple(tools)

    def request(self, *messages: Message, tools: Any = None, **fields: Any) -> Request:
        functions = self.tools if tools is None else tools
        return Request(model="m", messages=messages, functions=functions, **fields)

    def generation(self, text: str, *, version: int = 1, stops: bool = True) -> Generation:
        ids = [*self.tokenizer.encode(text), *([self.chat.stop_id] if stops else [])]
        return Generation(
            ids=tuple(ids),
            logprobs=tuple(-(1 + token % 5) / 8 for token in ids),
            version_spans=((0, len(ids), version),),
            finish=StopReason.stop if stops else StopReason.length,
            cached_tokens=0,
        )

    def sample(self, *messages: Message, said: str = "It is 4", **fields: Any) -> int:
        """Sample one answer of these messages. Return its node."""
        calls = fields.pop("calls", ())
        reasoning = fields.pop("reasoning", "")
        stops = fields.pop("stops", True)
        prompt = self.graph.prompt(self.request(*messages, **fields))
        answer = Message(role="assistant", text=said, calls=calls, reasoning=reasoning)
        written = f"<think>{reasoning}</think>{said}" if reasoning else said
        return self.graph.add(prompt, self.generation(written, stops=stops), answer)

    def message(self, node: int) -> Message:
        return self.graph.nodes[node].message

    def ids(self, text: str) -> list[int]:
        return self.chat._encode(text)

    def trains_once(self) -> None:
        """Check the columns: every sampled token of a node that is no discard trains in exactly one sequence."""
        columns, nodes = self.graph.columns(), self.graph.nodes
        discards = self.graph.discards()
        assert sorted(k for k, _ in columns.turns) == [k for k in range(len(nodes)) if k not in discards]
        assert [s.start for s in columns.segments] == [0, *(s.end for s in columns.segments[:-1])]
        assert columns.segments[-1].end == len(columns.ids) == len(columns.logprobs)
        policy = [k for s in columns.segments if s.origin is Origin.policy for k in range(s.start, s.end)]
        assert [k for k, p in enumerate(columns.logprobs) if p is not None] == policy
        assert [k for a, b, _ in columns.spans for k in range(a, b)] == policy
        assert all(s.origin is Origin.prompt for s in columns.segments if s.start in columns.starts)
        for node, start in columns.turns:
            sampled = nodes[node].generation
            assert tuple(columns.ids[start : start + len(sampled.ids)]) == sampled.ids
            assert tuple(columns.logprobs[start : start + len(sampled.ids)]) == sampled.logprobs


@TEMPLATES
def test_the_next_prompt_is_the_stored_ids_and_the_boundary(template: str) -> None:
    chain = Chain(template)
    first = chain.sample(SYSTEM, ASK, said="", calls=(CALL,))
    history = (SYSTEM, ASK, chain.message(first))
    prompt = chain.graph.prompt(chain.request(*history, RESULT))
    assert prompt.parent == first
    assert prompt.ids == [*chain.graph.path_ids(first), *chain.chat.tool_suffix_ids(["4"])]
    assert prompt.origin is Origin.tool
    prompt = chain.graph.prompt(chain.request(*history, MORE))
    assert prompt.ids == [*chain.graph.path_ids(first), *chain.chat.user_suffix_ids("And 3+3?")]
    assert prompt.origin is Origin.prompt
    messages = template_messages([SYSTEM, ASK])
    assert chain.graph.nodes[first].context == tuple(chain.chat.messages_ids(messages, chain.tools))


@TEMPLATES
def test_a_general_suffix_is_the_text_that_the_template_renders(template: str) -> None:
    chain = Chain(template)
    first = chain.sample(ASK, said="It is 4")
    prompt = chain.graph.prompt(chain.request(ASK, chain.message(first), RESULT, MORE))
    assert (prompt.parent, prompt.reason) == (first, None)
    whole = chain.chat.render(
        template_messages([ASK, chain.message(first), RESULT, MORE]), list(chain.tools), gen=True
    )
    assert whole.endswith(f"It is 4{chain.chat.stop_text}{chain.chat.decode(prompt.context)}")
    lead = chain.chat.boundaries.header + chain.chat.boundaries.opening
    assert chain.chat.decode(chain.chat.suffix_ids([], chain.tools)).endswith(lead)  # the assistant speaks again


CHANGES = {
    "arguments re-serialised": ({"calls": (replace(CALL, arguments='{"input":"","code":"print(4)"}'),)}, None),
    "ids of calls renamed": ({"calls": (replace(CALL, id="call_9"),)}, None),
    "reasoning dropped": ({"reasoning": ""}, None),
    "reasoning kept": ({"reasoning": "hm"}, None),
    "whitespace at the ends": ({"text": "Calling. \n"}, None),
    "reasoning edited": ({"reasoning": "ah"}, "history_edited"),
    "text edited": ({"text": "calling"}, "history_edited"),
    "arguments edited": ({"calls": (replace(CALL, arguments='{"code": "print(5)", "input": ""}'),)}, "history_edited"),
    "call rewritten to text": ({"text": "Calling tools: print(4)", "calls": ()}, "history_edited"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_harness_does_to_a_sampled_message(change: str) -> None:
    fields, reason = CHANGES[change]
    chain = Chain("rstar2")
    first = chain.sample(SYSTEM, ASK, said="Calling.", calls=(CALL,), reasoning="hm")
    echoed = replace(chain.message(first), **fields)
    prompt = chain.graph.prompt(chain.request(SYSTEM, ASK, echoed, RESULT))
    assert (prompt.parent, prompt.reason) == ((first, None) if reason is None else (None, reason))
    if reason is None:
        assert prompt.ids[: len(chain.graph.path_ids(first))] == chain.graph.path_ids(first)
    chain.graph.add(prompt, chain.generation("4"), Message(role="assistant", text="4"))
    chain.trains_once()
    assert len(chain.graph.columns().starts) == (1 if reason is None else 2)


def test_reasons_of_roots() -> None:
    chain = Chain()
    first = chain.sample(SYSTEM, ASK)
    second = chain.sample(SYSTEM, ASK, chain.message(first), MORE, said="6")
    history = (SYSTEM, ASK, chain.message(first), MORE, chain.message(second))
    again = Message(role="user", text="And 4+4?")
    reason = lambda *messages, **fields: chain.graph.prompt(chain.request(*messages, **fields)).reason  # noqa: E731
    assert reason(*history, again) is None
    assert reason(*history, again, tools=()) == "tools_changed"
    assert reason(replace(SYSTEM, text="Be long."), *history[1:], again) == "system_changed"
    edited = Message(role="assistant", text="five")
    assert reason(SYSTEM, ASK, edited, MORE, chain.message(second), again) == "history_edited"
    assert reason(*history, edited, again) == "history_edited"
    assert reason(SYSTEM, ASK, edited, again) == "compacted"
    assert reason(SYSTEM, Message(role="user", text="Summary: ...")) == "compacted"
    assert reason(replace(SYSTEM, text="A helper."), Message(role="user", text="List files"), tools=()) == "subagent"
    assert reason(SYSTEM, ASK) == "first"  # the same prompt again: a sibling, of the same root
    assert chain.graph.reasons == {"first": 1}


def test_a_turn_that_a_limit_cut_is_closed_before_the_next_message() -> None:
    chain = Chain()
    first = chain.sample(ASK, said="It i", stops=False)
    prompt = chain.graph.prompt(chain.request(ASK, chain.message(first), MORE))
    assert list(prompt.context) == [chain.chat.stop_id, *chain.chat.user_suffix_ids(MORE.text)]
    chain.graph.add(prompt, chain.generation("6"), Message(role="assistant", text="6"))
    chain.trains_once()


def test_siblings_without_children_are_discards_of_one_that_the_harness_continued() -> None:
    chain = Chain()
    nodes = [chain.sample(ASK, said=text) for text in ("3", "4", "5")]
    assert chain.graph.discards() == set()
    assert len(chain.graph.columns().starts) == 3
    chain.sample(ASK, chain.message(nodes[1]), MORE, said="6")
    assert chain.graph.discards() == {nodes[0], nodes[2]}
    columns = chain.graph.columns()
    assert columns.starts == [0]
    assert [node for node, _ in columns.turns] == [1, 3]
    chain.trains_once()


def test_a_fork_shares_its_prefix_as_context() -> None:
    chain = Chain()
    first = chain.sample(ASK, said="", calls=(CALL,))
    history = (ASK, chain.message(first))
    left = chain.sample(*history, RESULT, said="left")
    right = chain.sample(*history, replace(RESULT, text="5"), said="right")
    assert chain.graph.discards() == set()
    columns = chain.graph.columns()
    assert [node for node, _ in columns.turns] == [first, left, right]
    suffix = len(chain.chat.tool_suffix_ids(["5"]))
    assert [(s.end - s.start, s.origin) for s in columns.segments if s.start >= columns.starts[1]] == [
        (len(chain.graph.path_ids(first)), Origin.prompt),
        (suffix, Origin.tool),
        (len("right") + 1, Origin.policy),
    ]
    chain.trains_once()


def test_samples_with_the_same_text_continue_as_the_latest_with_the_echoed_reasoning() -> None:
    chain = Chain("rstar2")
    first = chain.sample(ASK, said="4", reasoning="a")
    second = chain.sample(ASK, said="4", reasoning="b")
    for reasoning, expected in (("a", first), ("b", second), ("", second)):
        echoed = Message(role="assistant", text="4", reasoning=reasoning)
        assert chain.graph.prompt(chain.request(ASK, echoed, MORE)).parent == expected


def test_ids_continue_the_longest_path_that_begins_them() -> None:
    chain = Chain()
    graph, give = chain.graph, lambda *ids: Request(model="m", prompt_ids=tuple(ids))
    first = graph.add(graph.prompt(give(1, 2, 3)), chain.generation("a"), Message(role="assistant", text="a"))
    path = graph.path_ids(first)
    prompt = graph.prompt(give(*path, 9))
    assert (prompt.parent, prompt.context, prompt.ids) == (first, (9,), [*path, 9])
    second = graph.add(prompt, chain.generation("b"), Message(role="assistant", text="b"))
    assert graph.prompt(give(*graph.path_ids(second), 8)).parent == second
    assert graph.prompt(give(*path, 8)).parent == first
    assert graph.prompt(give(1, 2, 4)).reason == "history_edited"
    chain.trains_once()


def test_functions_and_their_order_of_keys() -> None:
    chain = Chain()
    first = chain.sample(ASK)
    same = json.loads(json.dumps(PYTHON_SCHEMA, sort_keys=True))
    assert chain.graph.prompt(chain.request(ASK, chain.message(first), MORE, tools=(same,))).parent == first


def test_a_sample_of_an_earlier_request_is_no_part_of_the_latest() -> None:
    chain, answer = Chain(), Message(role="assistant", text="It is 4")
    first = chain.graph.prompt(chain.request(ASK))
    chain.graph.prompt(chain.request(MORE))
    chain.graph.add(first, chain.generation("It is 4"), answer)
    assert chain.graph.prompt(chain.request(MORE, answer, ASK)).parent is None
    assert chain.graph.prompt(chain.request(ASK, answer, MORE)).parent == 0
