"""The curves of a run: which metrics, over which steps, with which evaluations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rocstar.engine.charts.drawing import Figure
from rocstar.engine.charts.line_chart import Chart, Interval, Series, join_svgs, line_chart
from rocstar.train.record.console_text import number
from rocstar.train.record.metrics import Row, metric_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedEvaluation:
    """One evaluation of one set."""

    step: int
    set_name: str
    k: int
    value: float
    low: float | None
    high: float | None
    num_tasks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One chart of the page: metric names with the labels of their curves, and a caption."""

    title: str
    keys: Mapping[str, str]
    caption: str
    subtitle: str | None = None
    """Beside the title; default: the unit of the first metric."""
    top: float | None = None
    is_dull_at_zero: bool = False
    """Left out where every value is 0."""
    unless_same_as: str = ""
    """Left out where every value is that of this metric."""

    def says_something(self, steps: Sequence[Row]) -> bool:
        """Return True if a drawing of these steps shows anything."""
        values = [number(row, key) for row in steps for key in self.keys]
        if self.unless_same_as and values == [number(row, self.unless_same_as) for row in steps]:
            return False
        return any(v is not None and (v or not self.is_dull_at_zero) for v in values)


REWARD = Plot(
    title="Reward",
    keys={"reward/mean": "training"},
    subtitle="mean of the generated trajectories",
    top=1.0,
    caption="Mean reward of the generated trajectories; with rewards of 1 and 0 the share judged correct. "
    "Dots with whiskers: share of correct attempts in held-out evaluation, with its 95% interval.",
)
ERRORS = Plot(
    title="Tool errors in correct trajectories",
    keys={"tool/error_share_in_correct": ""},
    caption="Share of failing tool calls among trajectories that were correct anyway: the noise that RoC "
    "keeps from being rewarded.",
)
PLOTS = (
    Plot(
        title="Judged correct",
        keys={"reward/correct_share": ""},
        caption="Share of the generated trajectories judged correct, whatever their reward.",
        unless_same_as="reward/mean",
    ),
    ERRORS,
    Plot(
        title="Tool errors",
        keys={"tool/error_share": ""},
        caption="Share of all tool calls whose result is an error.",
    ),
    Plot(
        title="Length",
        keys={"seq_len/mean": "mean", "seq_len/max": "longest"},
        caption="Tokens per trajectory: prompt, policy and tool output.",
    ),
    Plot(
        title="Truncated",
        keys={"is_truncated/mean": ""},
        caption="Share of trajectories cut by a limit before they answered. They count as wrong.",
    ),
    Plot(
        title="Turns and tool calls",
        keys={"num_turns/mean": "turns", "tool/calls_mean": "calls"},
        subtitle="per trajectory",
        caption="Completions of the policy, and the tool calls that it wrote in them.",
    ),
    Plot(
        title="Entropy",
        keys={"entropy/mean": ""},
        caption="How undecided the policy is where it learns. Near zero it has stopped exploring.",
    ),
    Plot(
        title="Clipped tokens",
        keys={"clip/low_fraction": "low", "clip/high_fraction": "high"},
        caption="Loss tokens at a clip bound. With one update per batch the ratio is 1 and nothing clips.",
        is_dull_at_zero=True,
    ),
    Plot(title="Gradient norm", keys={"optim/grad_norm": ""}, caption="Before clipping."),
    Plot(
        title="Mismatch KL",
        keys={"mismatch_kl/mean": "all", "mismatch_kl/after_tool": "after tools"},
        caption="How far the learner's probabilities lie from the rollout's, per loss token.",
        is_dull_at_zero=True,
    ),
    Plot(
        title="Event loop",
        keys={"time/loop_lag_p99": "99%", "time/loop_lag_max": "longest"},
        caption="The delay of the event loop: above a second, tools and servers wait for it.",
    ),
    Plot(
        title="Staleness",
        keys={"policy/staleness_max": ""},
        caption="Updates between the oldest weights that wrote a trajectory of the batch and its learner's.",
        is_dull_at_zero=True,
    ),
)


def plot_chart(
    plot: Plot, rows_by_run: Mapping[str, Sequence[Row]], *, keys: Mapping[str, str], with_evaluations: bool
) -> Chart:
    """Return the curves of some metrics of a plot over the RL steps.

    Args:
        plot: the plot.
        rows_by_run: rows of metrics.jsonl by run; of one run its name is not shown.
        keys: labels by metric, all or some of the plot's.
        with_evaluations: add those of the main set of a single run.

    Raises:
        UnknownMetricError: a key is not in the list of metrics.
    """
    unit = next(metric_of(key).unit for key in keys)
    series: list[Series] = []
    alone = len(rows_by_run) == 1
    for place, (run, rows) in enumerate(rows_by_run.items()):
        for k, (key, label) in enumerate(keys.items()):
            points = [(row["step"], number(row, key)) for row in rows_of(rows, "rl")]
            if any(y is not None for _, y in points):
                # A run has the same colour in all drawings, also beside runs that lack this metric.
                color = 2 * k if alone else place
                series.append(Series(label=label if alone else run, color=color, points=points))
    intervals: list[Interval] = []
    marks: list[tuple[float, str]] = []
    if alone:
        (rows,) = rows_by_run.values()
        first_steps: dict[str, float] = {}
        for row in rows_of(rows, "rl"):
            first_steps.setdefault(str(row["stage"]), row["step"])
        if len(first_steps) > 1:
            marks = [(step, stage) for stage, step in first_steps.items()]
        found = evaluations(rows)
        intervals = [
            Interval(x=e.step, value=e.value, low=e.low, high=e.high, label=e.set_name)
            for e in found
            if with_evaluations and e.set_name == main_set_of(found)
        ]
    highest = max((y for s in series for _, y in s.points if y is not None), default=0.0)
    subtitle = plot.subtitle
    if len(keys) < len(plot.keys):  # say which of them it is
        subtitle = ", ".join([*keys.values(), subtitle or unit])
    return Chart(
        title=plot.title,
        subtitle=subtitle,
        unit=unit,
        series=series,
        intervals=intervals,
        marks=marks,
        top=plot.top if plot.top is None or highest <= plot.top else None,
    )


def picture_svg(rows: Sequence[Row]) -> str:
    """The two main curves of a run: reward with evaluations, tool errors in correct trajectories."""
    panels = [_chart_of(rows, plot) for plot in (REWARD, ERRORS)]
    return join_svgs([line_chart(panel) for panel in panels], width=520, height=250)


def _chart_of(rows: Sequence[Row], plot: Plot) -> Chart:
    return plot_chart(plot, {"": rows}, keys=plot.keys, with_evaluations=plot is REWARD)


def evaluations(rows: Sequence[Row]) -> list[PlottedEvaluation]:
    """Every evaluation by step; of several of one set at one step the last (a resumed run repeats some)."""
    found: dict[tuple[str, int], PlottedEvaluation] = {}
    for row in rows:
        for name in row:
            match = re.fullmatch(r"eval/([^/]+)/avg@(\d+)", name)
            value = number(row, name)
            if match is None or value is None:
                continue
            set_name, prefix = match[1], f"eval/{match[1]}"
            num_tasks = number(row, f"{prefix}/num_tasks")
            # An evaluation of the cold start came before the first RL step, whatever SFT counts.
            step = 0 if "sft" in (row["phase"], row["stage"]) else int(row["step"])
            found[set_name, step] = PlottedEvaluation(
                step=step,
                set_name=set_name,
                k=int(match[2]),
                value=value,
                low=number(row, f"{prefix}/ci_low"),
                high=number(row, f"{prefix}/ci_high"),
                num_tasks=None if num_tasks is None else int(num_tasks),
            )
    return sorted(found.values(), key=lambda e: (e.set_name, e.step))


def rows_of(rows: Sequence[Row], phase: str) -> list[Row]:
    """The rows of one phase, in order."""
    return [row for row in rows if row["phase"] == phase]


def main_set_of(found: Sequence[PlottedEvaluation]) -> str | None:
    """The set that the headline is about: `heldout`, else the first."""
    names = [e.set_name for e in found]
    return "heldout" if "heldout" in names else next(iter(names), None)


def drawn_curves(rows: Sequence[Row]) -> list[Figure]:
    """The curves of a run that say something; none for a run without any."""
    steps, found = rows_of(rows, "rl"), evaluations(rows)
    figures = []
    for plot in (REWARD, *PLOTS):
        if plot.says_something(steps) or (plot is REWARD and (steps or found)):
            draw = partial(line_chart, _chart_of(rows, plot))
            figures.append(Figure(draw, plot.caption, is_wide=plot is REWARD))
    speeds = [
        (row["step"], written / seconds)
        for row in steps
        if (written := number(row, "tokens/generated")) and (seconds := number(row, "time/step"))
    ]
    if speeds:
        series = [Series(label="", points=speeds, color=0)]
        chart = Chart(title="Tokens per second", unit="tokens/s", series=series)
        caption = "Tokens that the policy wrote, by the whole time of the step."
        figures.append(Figure(partial(line_chart, chart), caption))
    losses = [(row["step"], number(row, "loss/sft")) for row in rows_of(rows, "sft")]
    if any(loss is not None for _, loss in losses):
        chart = Chart(title="SFT loss", unit="nats", series=[Series(label="", points=losses, color=0)])
        caption = "The cold start: cross-entropy per assistant token, by SFT step."
        figures.append(Figure(partial(line_chart, chart), caption))
    return figures
