"""What the server counts, as plain numbers, and how Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rocstar.engine.types import Failed, Origin

if TYPE_CHECKING:
    from rocstar.engine.serve.conversation import ConversationOrder, ServedConversation

PREFIX = "rocstar_serve_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIRST_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Counts(Collector):
    """Invariant: tokens are those of conversations that ended, each counted once, by who wrote them."""

    def __init__(self, told: Callable[[], Mapping[str, float]] = dict) -> None:
        """told: gives further gauges without labels, by name, when they are read."""
        self.told = told
        self.conversations: Counter[tuple[str]] = Counter()
        self.ends: Counter[tuple[str]] = Counter()
        self.tokens: Counter[tuple[str]] = Counter()
        self.tool_calls: Counter[tuple[str]] = Counter()
        self.answers: Counter[tuple[str, str]] = Counter()
        self.disconnects = self.turned_away = self.records_lost = self.thumbs = 0
        self._first_buckets = [0] * (len(FIRST_BUCKETS_S) + 1)
        self._first_s = 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def begun(self, order: ConversationOrder) -> None:
        """A conversation begins."""
        self.conversations[(order.face,)] += 1

    def first_part(self, seconds: float) -> None:
        """A stream had its first part so long after its request."""
        self._first_buckets[bisect_left(FIRST_BUCKETS_S, seconds)] += 1
        self._first_s += seconds

    def ended(self, conversation: ServedConversation) -> None:
        """A conversation has ended."""
        for t in conversation.trajectories:
            outcome = t.outcome
            is_lost = isinstance(outcome, Failed) and t.finish_reason.value == "aborted"
            self.ends[
                (outcome.kind if is_lost and isinstance(outcome, Failed) else t.finish_reason.value,)
            ] += 1
            for segment in t.segments:
                self.tokens[(Origin(segment.origin).value,)] += segment.end - segment.start
            for result in t.results:
                self.tool_calls[(result.status,)] += 1

    def render(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families, for the registry."""
        for name, value in self.told().items():
            yield GaugeMetricFamily(PREFIX + name, _GAUGES.get(name, "Reported by the engine."), value=value)
        for name, text, value in (
            ("disconnects_total", "Clients that went away before their answer.", self.disconnects),
            ("turned_away_total", "Requests refused because too many were in flight.", self.turned_away),
            ("records_lost_total", "Conversations whose record could not be written.", self.records_lost),
            ("thumbs_total", "Verdicts of people that were stored.", self.thumbs),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        yield _family("conversations_total", "Begun, by face.", ("face",), self.conversations)
        yield _family("choices_ended_total", "Ended, by reason or failure.", ("reason",), self.ends)
        yield _family("tokens_total", "Of choices that ended, by who wrote them.", ("origin",), self.tokens)
        yield _family("tool_calls_total", "Answered, by status.", ("status",), self.tool_calls)
        yield _family("answers_total", "HTTP answers, by route and status.", ("route", "code"), self.answers)
        bounds = (*(f"{bound:g}" for bound in FIRST_BUCKETS_S), "+Inf")
        yield HistogramMetricFamily(
            f"{PREFIX}first_part_seconds",
            "From a request to the first part of its stream.",
            buckets=list(zip(bounds, accumulate(self._first_buckets), strict=True)),
            sum_value=self._first_s,
        )


_GAUGES = {
    "choices_in_flight": "Choices that have begun and not ended.",
    "kv_tokens_total": "Capacity of the engine's KV cache.",
    "kv_tokens_used": "Of it, in use.",
    "engine_running": "Requests that the engine runs.",
    "engine_waiting": "Requests that wait in the engine.",
}


def _family(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric([str(value) for value in values], count)
    return family
