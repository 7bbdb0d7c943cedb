"""Counters of the service and their Prometheus text form (exposition format 0.0.4)."""

import os
import resource
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rocstar.sandbox.types import ExecResult

PREFIX = "rocstar_sandbox_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Invariant: `in_flight` is the number of calls admitted whose outcome was not yet seen or given up."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.results: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[str] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.sessions_opened = 0
        self.sessions_lost: Counter[str] = Counter()
        self.disconnects = 0
        self.idempotent_hits = 0
        self._wall_buckets = [0] * (len(WALL_BUCKETS_S) + 1)
        self._wall_sum_s = 0.0

    def saw_result(self, flavour: str, result: ExecResult) -> None:
        self.results[flavour, result.status] += 1
        self._wall_buckets[bisect_left(WALL_BUCKETS_S, result.wall_s)] += 1
        self._wall_sum_s += result.wall_s

    def render(
        self, *, queued: int, sessions: int, remembered_keys: int, backend: Mapping[str, float]
    ) -> str:
        """backend: what the sandbox tells about itself, by name; a name ending in _total is a counter."""
        lines: list[str] = []
        add = lines.extend
        add(_gauge("in_flight", "Calls admitted and not finished.", self.in_flight))
        add(_gauge("queued", "Calls in flight beyond those that can run at a time.", queued))
        add(_family("results_total", "counter", "Programs that ended, by flavour and status."))
        add(_rows("results_total", ("flavour", "status"), self.results.items()))
        add(_family("failures_total", "counter", "Calls without a result, by kind of failure."))
        add(_rows("failures_total", ("kind",), (((kind,), count) for kind, count in self.failures.items())))
        add(_family("answers_total", "counter", "HTTP answers, by route and status code."))
        add(_rows("answers_total", ("route", "code"), self.answers.items()))
        add(self._histogram())
        add(_gauge("sessions", "Sessions that are open.", sessions))
        add(_counter("sessions_opened_total", "Sessions opened, branches included.", self.sessions_opened))
        add(
            _family(
                "sessions_lost_total",
                "counter",
                "Sessions that ended otherwise than by their client, by reason.",
            )
        )
        add(
            _rows(
                "sessions_lost_total",
                ("reason",),
                (((why,), count) for why, count in self.sessions_lost.items()),
            )
        )
        add(
            _counter(
                "disconnects_total", "Requests whose client went away before the answer.", self.disconnects
            )
        )
        add(
            _counter(
                "idempotent_hits_total",
                "Requests answered by an execution already known.",
                self.idempotent_hits,
            )
        )
        add(_gauge("idempotency_keys", "Idempotency keys that are remembered.", remembered_keys))
        for name, value in backend.items():
            kind = _counter if name.endswith("_total") else _gauge
            add(kind(name, "Reported by the sandbox.", value))
        add(_process())
        return "\n".join(lines) + "\n"

    def _histogram(self) -> Iterator[str]:
        name = "wall_seconds"
        yield from _family(
            name, "histogram", "Wall clock of programs that ended, from the start of the child."
        )
        total = 0
        for bound, count in zip(WALL_BUCKETS_S, self._wall_buckets, strict=False):
            total += count
            yield f'{PREFIX}{name}_bucket{{le="{bound:g}"}} {total}'
        total += self._wall_buckets[-1]
        yield f'{PREFIX}{name}_bucket{{le="+Inf"}} {total}'
        yield f"{PREFIX}{name}_sum {self._wall_sum_s:.6f}"
        yield f"{PREFIX}{name}_count {total}"


def _family(name: str, kind: str, text: str, prefix: str = PREFIX) -> Iterator[str]:
    yield f"# HELP {prefix}{name} {text}"
    yield f"# TYPE {prefix}{name} {kind}"


def _rows(
    name: str, labels: tuple[str, ...], counts: Iterable[tuple[tuple[object, ...], int]]
) -> Iterator[str]:
    for values, count in sorted(counts, key=str):
        pairs = ",".join(
            f'{label}="{_escaped(str(value))}"' for label, value in zip(labels, values, strict=True)
        )
        yield f"{PREFIX}{name}{{{pairs}}} {count}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, text: str, value: float, prefix: str = PREFIX) -> Iterator[str]:
    yield from _family(name, "gauge", text, prefix)
    yield f"{prefix}{name} {value:g}" if isinstance(value, float) else f"{prefix}{name} {value}"


def _counter(name: str, text: str, value: float, prefix: str = PREFIX) -> Iterator[str]:
    yield from _family(name, "counter", text, prefix)
    yield f"{prefix}{name} {value}"


def _process() -> Iterator[str]:
    """The service's own process, under the names every Prometheus client uses."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield from _counter(
        "process_cpu_seconds_total", "CPU time of the service.", usage.ru_utime + usage.ru_stime, ""
    )
    yield from _gauge(
        "process_open_fds", "Open descriptors of the service.", len(os.listdir("/proc/self/fd")), ""
    )
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    yield from _gauge("process_resident_memory_bytes", "Resident set of the service.", resident, "")
