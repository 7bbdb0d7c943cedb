"""A session's samples as a graph over exact ids: the prompt of each request, and what trains.

    request ──known path──> stored ids + boundary ids of the new messages
            └─anything else──> a root: the messages by the template, with a reason

A node is one sampled turn. Text is never tokenised where ids exist: the ids of a path are those that the engine
was given and sampled. The harness's edit of a sampled message opens a root and is neither continued nor trained.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from rocstar.engine.chat.boundaries import ChatError
from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.gateway.messages import Message, Request, num_equal
from rocstar.engine.gateway.stream_parser import thought_tags
from rocstar.engine.inference.base import Generation, GenerationBuilder
from rocstar.engine.types import Origin, Segment, ToolCall
from rocstar.sandbox.http.errors import RequestError

Reason = Literal[
    "first", "tools_changed", "system_changed", "history_edited", "compacted", "subagent", "template_rewrites"
]
"""Why a request opened a root.

    first              of the session
    tools_changed      a known system message with other functions
    system_changed     known functions with another system message
    history_edited     a known conversation in which an earlier message differs
    compacted          the same in fewer messages than it was
    subagent           another conversation: its first message is new, and no assistant has answered yet
    template_rewrites  a known path, but the template shows earlier turns otherwise when these messages follow
"""


class TurnNode(Struct, frozen=True, kw_only=True, eq=False):
    """One sampled turn.

    Attributes:
        parent: the index of the node that it continues; None for a root.
        reason: why a root was opened; None for another node.
        digest: of the prompt; samples of one prompt are siblings.
        context: the ids between the parent's and the sampled ones; of a root the whole prompt.
        origin: of the context: `tool` for tool results alone.
        tail: the messages of the context; of a root all messages.
        functions: that the prompt shows.
        message: the assistant's message as the client gets it.
        text: the sampled text.
        calls: of the functions in it, malformed ones included.
        generation: the sampled ids, log-probs and versions.
        num_ids, num_messages: of the path from its root through this node.
    """

    parent: int | None
    reason: Reason | None
    digest: bytes
    context: tuple[int, ...]
    origin: Origin
    tail: tuple[Message, ...]
    functions: tuple[Mapping[str, Any], ...]
    message: Message
    text: str
    calls: tuple[ToolCall, ...]
    generation: Generation
    num_ids: int
    num_messages: int


class TurnPrompt(Struct, frozen=True, kw_only=True, eq=False):
    """Where a request's sample belongs in the graph. `ids`: all that the engine gets; others as of `TurnNode`."""

    request: Request
    parent: int | None
    reason: Reason | None
    digest: bytes
    context: tuple[int, ...]
    origin: Origin
    tail: tuple[Message, ...]
    ids: list[int]


@dataclass(slots=True, kw_only=True, eq=False)
class SessionColumns(GenerationBuilder):
    """The token columns of a session: its training sequences one behind the other.

    Attributes:
        segments: they tile all ids; each sequence begins with one of `Origin.prompt`.
        starts: the index where each sequence begins.
        turns: (node, index of its first sampled id) of each node that trains.
    """

    segments: list[Segment] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)

    def append(self, ids: Sequence[int], origin: Origin, generation: Generation | None = None) -> None:
        """Append ids, which `generation` sampled if it is given."""
        start = len(self.ids)
        if generation is None:
            self.add(ids, [None] * len(ids))
        else:
            self.add_generation(generation)
        joins = self.segments and self.segments[-1].origin is origin is Origin.prompt and start not in self.starts
        begin = self.segments.pop().start if joins else start
        if len(self.ids) > begin:
            self.segments.append(Segment(start=begin, end=len(self.ids), origin=origin))


class MessageGraph:
    """The samples of one session. `prompt` reads, `add` writes.

    Invariant: the ids of a path are the ids that the engine was given for its last node and those that it
    sampled; each sampled token trains in at most one sequence.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self.nodes: list[TurnNode] = []
        self._roots: dict[bytes, Reason] = {}
        """The reason of each root, by the digest of its prompt."""
        self._by_messages: dict[bytes, list[int]] = {}
        """Nodes by the digest of functions and messages through the sampled one."""
        self._by_ids: dict[bytes, int] = {}
        """The latest node by the digest of its path's ids; filled by the first prompt of ids."""
        self._num_by_ids = 0
        self._shapes: dict[int, tuple[str, str, str]] = {}
        """By root: its functions, its system messages and its first other message."""
        self._longest: Counter[int] = Counter()
        """The most messages of a root's paths."""
        self._latest: tuple[Any, tuple[Message, ...], list[bytes]] = (None, (), [])
        """Functions, messages and prefix digests of the latest request."""
        self._latest_path: tuple[int, list[int]] = (-1, [])
        """The latest node, and the ids of its path."""

    @property
    def reasons(self) -> Counter[Reason]:
        """Roots by reason. Samples of one prompt have one root."""
        return Counter(self._roots.values())

    # ---- the prompt of a request ----

    def prompt(self, request: Request) -> TurnPrompt:
        """Return the ids of a request's prompt. Raises RequestError for messages that cannot be shown."""
        if request.prompt_ids is not None:
            return self._prompt_of_ids(request, request.prompt_ids)
        digests = self._prefix_digests(request)
        last = len(request.messages) - 1
        while last >= 0 and request.messages[last].role != "assistant":
            last -= 1
        parent = self._known_node(request.messages, digests[last]) if last >= 0 else None
        reason: Reason | None = None
        if parent is not None:
            tail = request.messages[last + 1 :]
            try:
                chat, ids = self._chat, self.nodes[parent].generation.ids
                closing = [] if ids and ids[-1] == chat.stop_id else [chat.stop_id]  # of a turn that a limit cut
                context = [*closing, *chat.suffix_ids(template_messages(tail), request.functions)]
            except ChatError:
                parent, reason = None, "template_rewrites"
        if parent is None:
            reason = reason or self._roots.get(digests[-1]) or self._reason(request)
            tail = request.messages
            messages = template_messages(request.messages)
            _, context = shown_prompt(self._chat, messages, request.functions)
        origin = Origin.tool if parent is not None and all(m.role == "tool" for m in tail) else Origin.prompt
        return TurnPrompt(
            request=request,
            parent=parent,
            reason=reason,
            digest=digests[-1],
            context=tuple(context),
            origin=origin,
            tail=tail,
            ids=[*([] if parent is None else self.path_ids(parent)), *context],
        )

    def _prompt_of_ids(self, request: Request, ids: tuple[int, ...]) -> TurnPrompt:
        """Continue the longest known path whose ids begin the prompt, or open a root."""
        for k in range(self._num_by_ids, len(self.nodes)):
            self._by_ids[_digest(array("i", self.path_ids(k)).tobytes())] = k
        self._num_by_ids = len(self.nodes)
        column, running, parent, done = array("i", ids), hashlib.blake2b(digest_size=16), None, 0
        for size in sorted({node.num_ids for node in self.nodes if node.num_ids < len(ids)}):
            running.update(column[done:size].tobytes())
            done = size
            parent = self._by_ids.get(running.digest(), parent)
        running.update(column[done:].tobytes())
        digest = running.digest()
        start = 0 if parent is None else self.nodes[parent].num_ids
        return TurnPrompt(
            request=request,
            parent=parent,
            reason=None
            if parent is not None
            else self._roots.get(digest, "history_edited" if self.nodes else "first"),
            digest=digest,
            context=ids[start:],
            origin=Origin.prompt,
            tail=(),
            ids=list(ids),
        )

    def _known_node(self, messages: Sequence[Message], digest: bytes) -> int | None:
        """Return the latest node of these messages whose reasoning, and that of its ancestors, was not edited."""
        for index in reversed(self._by_messages.get(digest, ())):
            if all(self._has_reasoning_of(messages, k) for k in self.path(index)):
                return index
        return None

    def _has_reasoning_of(self, messages: Sequence[Message], index: int) -> bool:
        node = self.nodes[index]
        echoed = messages[node.num_messages - 1].reasoning.strip()
        return not echoed or echoed == node.message.reasoning.strip()

    def num_new_chars(self, request: Request) -> int:
        """Return the length of the texts that the latest request did not have."""
        return sum([len(message.text) for message in request.messages[num_equal(self._latest[1], request.messages) :]])

    def _prefix_digests(self, request: Request) -> list[bytes]:
        """The digest of the functions and the messages through each one. Messages of the latest request are not
        encoded again."""
        functions, before, digests = self._latest
        if functions != request.functions:
            before, digests = (), [_digest(json.dumps(request.functions, sort_keys=True).encode())]
        same = num_equal(before, request.messages)
        digests = digests[: same + 1]
        for message in request.messages[same:]:
            digests.append(_extend(digests[-1], message))
        self._latest = request.functions, request.messages, digests
        return digests[1:]

    def _reason(self, request: Request) -> Reason:
        """Why these messages, which extend no known path, open a root. For the counter: by shape alone."""
        functions, system, first = _shape(request)
        roots = list(self._shapes.items())  # a copy: another request may add one meanwhile
        if not roots:
            return "first"
        shapes = [shape for _, shape in roots]
        alike = [self._longest[k] for k, shape in roots if shape[:2] == (functions, system)]
        if alike and len(request.messages) < max(alike):
            return "compacted"
        is_new = all(shape[2] != first for shape in shapes)
        if is_new and all(message.role != "assistant" for message in request.messages):
            return "subagent"
        if alike:
            return "history_edited"
        return "tools_changed" if any(shape[1] == system for shape in shapes) else "system_changed"

    # ---- samples ----

    def add(
        self,
        prompt: TurnPrompt,
        generation: Generation,
        message: Message,
        *,
        text: str = "",
        calls: tuple[ToolCall, ...] = (),
    ) -> int:
        """Add the sample of a prompt. Return the index of its node."""
        index, request, parent = len(self.nodes), prompt.request, prompt.parent
        before = 0 if parent is None else self.nodes[parent].num_messages
        node = TurnNode(
            parent=parent,
            reason=prompt.reason,
            digest=prompt.digest,
            context=prompt.context,
            origin=prompt.origin,
            tail=prompt.tail,
            functions=request.functions,
            message=message,
            text=text,
            calls=calls,
            generation=generation,
            num_ids=len(prompt.ids) + len(generation.ids),
            num_messages=before + len(prompt.tail) + 1,
        )
        self.nodes.append(node)
        self._latest_path = index, [*prompt.ids, *generation.ids]
        if prompt.reason is not None:
            self._roots[prompt.digest] = prompt.reason
        if request.prompt_ids is None:
            digest = _extend(prompt.digest, message)
            self._by_messages.setdefault(digest, []).append(index)
            if self._latest[1] is request.messages:  # the next request has them with this one
                self._latest = request.functions, (*request.messages, message), [*self._latest[2], digest]
            root = self.path(index)[0]
            self._longest[root] = max(self._longest[root], node.num_messages)
            if root == index:
                self._shapes[root] = _shape(request)
        return index

    def path(self, index: int) -> list[int]:
        """The nodes from the root to this one."""
        path: list[int] = []
        at: int | None = index
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def path_ids(self, index: int) -> list[int]:
        """The ids of the path through this node."""
        if index == self._latest_path[0]:
            return [*self._latest_path[1]]
        nodes = [self.nodes[k] for k in self.path(index)]
        return [token for node in nodes for token in (*node.context, *node.generation.ids)]

    # ---- what trains ----

    def discards(self) -> set[int]:
        """Nodes without children, of whose siblings one has children: the harness went on from that one."""
        parents = {node.parent for node in self.nodes}
        continued = {(self.nodes[k].parent, self.nodes[k].digest) for k in parents if k is not None}
        return {k for k, node in enumerate(self.nodes) if k not in parents and (node.parent, node.digest) in continued}

    def columns(self) -> SessionColumns:
        """Return the training sequences: for each leaf in order of creation the path from its root. A sampled
        token trains in the first one that has it; in later ones it is context."""
        columns, trained = SessionColumns(), set[int]()
        parents, discards = {node.parent for node in self.nodes}, self.discards()
        for leaf in range(len(self.nodes)):
            if leaf in parents or leaf in discards:
                continue
            columns.starts.append(len(columns.ids))
            for k in self.path(leaf):
                node, is_shared = self.nodes[k], k in trained
                columns.append(node.context, Origin.prompt if is_shared else node.origin)
                if not is_shared:
                    columns.turns.append((k, len(columns.ids)))
                    trained.add(k)
                columns.append(
                    node.generation.ids,
                    Origin.prompt if is_shared else Origin.policy,
                    None if is_shared else node.generation,
                )
        return columns


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages to the form of chat templates. Raises RequestError for arguments that are no object."""
    return [_template_message(message, k) for k, message in enumerate(messages)]


def _template_message(message: Message, place: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.call_id:
        shown["tool_call_id"] = message.call_id
    if message.name:
        shown["name"] = message.name
    calls = []
    for call in message.calls:
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise RequestError(
                f"messages.{place} calls {call.name[:40]!r} with {call.arguments[:40]!r}, which is no JSON object",
                field=f"messages.{place}",
            )
        calls.append({"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}})
    return {**shown, "tool_calls": calls} if calls else shown


def shown_prompt(
    chat: ChatFormat, messages: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Return the messages and their token ids, by the policy's template. Thinking of earlier responses is put
    back where the policy wrote it. Raises RequestError for content that the template drops.

    functions: None for the tools of `chat`.
    """
    try:
        check = chat.shown_check(chat.tools if functions is None else functions)
        shown = check.shown_form(messages, thought_tags(chat.boundaries.opening))
        if shown[-1]["role"] != "user":
            return shown, chat.messages_ids(shown, functions)
        return shown, chat.prompt_ids(shown[-1]["content"], shown[:-1], functions)
    except ChatError as error:
        raise RequestError(f"messages cannot be shown to the policy as they are: {error}", field="messages") from None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _extend(before: bytes, message: Message) -> bytes:
    return _digest(before + message.key.encode("utf-8", "surrogatepass"))


def _shape(request: Request) -> tuple[str, str, str]:
    """The functions, the system messages in front, and the first other message."""
    messages = request.messages
    end = next((k for k, message in enumerate(messages) if message.role != "system"), len(messages))
    system, first = ("".join(message.key for message in part) for part in (messages[:end], messages[end : end + 1]))
    return json.dumps(request.functions, sort_keys=True), system, first
