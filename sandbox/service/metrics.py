"""Prometheus metrics of the service."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric

from rocstar.sandbox.http.metrics import SecondsHistogram, ServerMetrics
from rocstar.sandbox.types import ExecResult

WALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

HELP = {
    "in_flight": "Calls admitted and not finished.",
    "queued": "Calls in flight beyond those that can run at a time.",
    "sessions": "Sessions that are open.",
    "sessions_opened_total": "Sessions opened, branches included.",
    "disconnects_total": "Requests whose client went away before the answer.",
    "idempotent_hits_total": "Requests answered by an execution already known.",
    "idempotency_keys": "Idempotency keys that are remembered.",
    "connections": "Connections of clients.",
    "connections_turned_away_total": "Connections closed for others, or because they were idle.",
}
"""The help texts of metrics without labels. The sandbox may report others."""


class ServiceMetrics(ServerMetrics):
    """The counts of one service.

    Invariant: `in_flight` is the number of admitted calls that have neither an outcome nor been given up.
    """

    prefix = "rocstar_sandbox_"

    def __init__(self, read_others: Callable[[], Mapping[str, float]] = dict) -> None:
        """`read_others`: returns further metrics without labels by name, when /metrics is read."""
        super().__init__()
        self.in_flight = 0
        self.results: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str]] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.sessions_opened = 0
        self.sessions_lost: Counter[tuple[str]] = Counter()
        self.disconnects = 0
        self._read_others = read_others
        self._wall = SecondsHistogram(WALL_BUCKETS_S)

    def saw_result(self, flavour: str, result: ExecResult) -> None:
        self.results[flavour, result.status] += 1
        self._wall.observe(result.wall_s)

    def collect(self) -> Iterator[Metric]:
        plain = {
            "in_flight": self.in_flight,
            "sessions_opened_total": self.sessions_opened,
            "disconnects_total": self.disconnects,
            **self._read_others(),
        }
        for name, value in plain.items():
            yield self.plain(name, HELP.get(name, "Reported by the sandbox."), value)
        text = "Programs that ended, by flavour and status."
        yield self.labelled("results_total", text, ("flavour", "status"), self.results)
        text = "Calls without a result, by kind of failure."
        yield self.labelled("failures_total", text, ("kind",), self.failures)
        text = "HTTP responses, by route and status code."
        yield self.labelled("answers_total", text, ("route", "code"), self.answers)
        text = "Sessions that were not closed by their client, by reason."
        yield self.labelled("sessions_lost_total", text, ("reason",), self.sessions_lost)
        text = "Wall clock of programs that ended, from the start of the child."
        yield self._wall.family(f"{self.prefix}wall_seconds", text)
