"""Prometheus metrics of the endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric

from rocstar.engine.serve.conversation import ServedConversation
from rocstar.engine.types import Failed, Origin
from rocstar.sandbox.http.metrics import SecondsHistogram, ServerMetrics

FIRST_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_GAUGES = {
    "choices_in_flight": "Choices that have started and not ended.",
    "kv_tokens_total": "Capacity of the engine's KV cache.",
    "kv_tokens_used": "Tokens of the KV cache in use.",
    "engine_running": "Requests that run in the engine.",
    "engine_waiting": "Requests that wait in the engine.",
}


class ServeMetrics(ServerMetrics):
    """The counts of one endpoint.

    Invariant: tokens are counted once, by origin, when their conversation ends.
    """

    prefix = "rocstar_serve_"

    def __init__(self, read_gauges: Callable[[], Mapping[str, float]] = dict) -> None:
        """read_gauges: returns further gauges by name, when /metrics is read."""
        super().__init__()
        self.read_gauges = read_gauges
        self.conversations: Counter[tuple[str]] = Counter()
        self.ends: Counter[tuple[str]] = Counter()
        self.tokens: Counter[tuple[str]] = Counter()
        self.tool_calls: Counter[tuple[str]] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.disconnects = self.turned_away = self.records_lost = self.thumbs = 0
        self.first_part = SecondsHistogram(FIRST_BUCKETS_S)
        """The time from a request to the first part of its stream."""

    def ended(self, conversation: ServedConversation) -> None:
        """Count a conversation that has ended."""
        for t in conversation.trajectories:
            reason = t.finish_reason.value
            if reason == "aborted" and isinstance(t.outcome, Failed):
                reason = t.outcome.kind
            self.ends[(reason,)] += 1
            for segment in t.segments:
                self.tokens[(Origin(segment.origin).value,)] += segment.end - segment.start
            for result in t.results:
                self.tool_calls[(result.status,)] += 1

    def collect(self) -> Iterator[Metric]:
        for name, value in self.read_gauges().items():
            yield self.plain(name, _GAUGES.get(name, "Reported by the engine."), value)
        for name, text, value in (
            ("disconnects_total", "Clients that disconnected before their response.", self.disconnects),
            ("turned_away_total", "Requests refused because too many were in flight.", self.turned_away),
            ("records_lost_total", "Conversations whose record could not be written.", self.records_lost),
            ("thumbs_total", "Stored feedback of people.", self.thumbs),
        ):
            yield self.plain(name, text, value)
        for name, text, labels, counts in (
            ("conversations_total", "Conversations started, by served model.", ("face",), self.conversations),
            ("choices_ended_total", "Choices ended, by reason or failure.", ("reason",), self.ends),
            ("tokens_total", "Tokens of choices that ended, by origin.", ("origin",), self.tokens),
            ("tool_calls_total", "Tool calls, by status of their result.", ("status",), self.tool_calls),
        ):
            yield self.labelled(name, text, labels, counts)
        text = "HTTP responses, by route and status."
        yield self.labelled("answers_total", text, ("route", "code"), self.answers)
        text = "Time from a request to the first part of its stream."
        yield self.first_part.family(f"{self.prefix}first_part_seconds", text)
