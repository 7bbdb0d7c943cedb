"""A record as the page shows it: facts, turns with their calls in their places, and columns of tokens."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rocstar.engine.chat.toolcalls import final_answer, tool_call_spans, without_tool_calls
from rocstar.engine.record.json_record import decode_times
from rocstar.engine.record.learned import LearnedTokens
from rocstar.engine.record.step_file import seconds_of
from rocstar.engine.types import HIDDEN, TRUNCATED, TurnForm

Record = Mapping[str, Any]
Column = npt.NDArray[Any]
TokenTexts = Callable[[Sequence[int]], list[str] | None]
"""Returns the text of each token, or None without a tokenizer."""

PAGE_TOKENS: Final = 4096
"""Tokens of one answer at most."""
MAX_BINS: Final = 2000
MAX_QUESTION: Final = 600
MAX_ANSWER: Final = 200
"""The characters of a question and of an answer in a row of a list."""

CODE: Final = "code"
"""The argument that is a program, whatever the tool."""


class WithheldError(Exception):
    """A record of a withheld task."""


def check_shown(record: Record, *, reveal: bool) -> None:
    """WithheldError for the record of a hidden task without `reveal`."""
    if not reveal and ((record.get("task") or {}).get("meta") or {}).get(HIDDEN):
        raise WithheldError("the licence of this task asks that it is not shown; `rocstar view --reveal` shows it")


def conversation(record: Record) -> dict[str, Any]:
    """Return the question, the turns and the outcome of a trajectory, except what its row in the list has."""
    task, outcome = record.get("task") or {}, record.get("outcome") or {}
    times = decode_times(record.get("times"))
    turn_times = itertools.chain(() if times is None else times.turns, itertools.repeat(None))
    advantage = record.get("advantage")
    if isinstance(advantage, list):  # of each token: the range
        advantage = [min(advantage), max(advantage)] if advantage else None
    return {
        "stage": record.get("stage"),
        "seed": record.get("seed"),
        "task": {name: task.get(name) for name in ("id", "source", "question", "answer")},
        "given": given_answer(record),
        "failed": outcome.get("failed"),
        "method": outcome.get("method"),
        "finish": record.get("finish_reason"),
        "penalty": record.get("penalty"),
        "advantage": advantage,
        "num_tokens": len(record.get("ids") or ()),
        "segments": [[s["start"], s["end"], s["origin"]] for s in record.get("segments") or ()],
        "starts": record.get("starts") or [0],
        "fork": record.get("fork"),
        "prompt": next((s.get("text", "") for s in record.get("segments") or ()), ""),
        "turns": [
            {
                "pieces": list(pieces(turn)),
                "cut": turn.get("finish") == "length",
                "start": turn.get("start"),
                "end": turn.get("end"),
                "written": None if known is None else [known.written.start_s, known.written.end_s],
                "ran": [] if known is None else [None if c is None else c.seconds for c in known.calls],
            }
            for turn, known in zip(record.get("turns") or (), turn_times, strict=False)
        ],
        "times": None
        if times is None
        else {
            "began": times.began,
            "seconds": times.ended_s,
            "queued_s": times.granted_s,
            "writing_s": math.fsum(turn.written.seconds for turn in times.turns),
            "tools_s": math.fsum(seconds_of(turn.calls) for turn in times.turns),
            "judging_s": None if times.judged is None else times.judged.seconds,
        },
    }


def row_texts(record: Record) -> dict[str, str]:
    """Return the question, the expected and the given answer of a record, cut to the size of a row."""
    task = record.get("task") or {}
    return {
        "question": str(task.get("question", ""))[:MAX_QUESTION],
        "answer": str(task.get("answer", ""))[:MAX_ANSWER],
        "given": given_answer(record)[:MAX_ANSWER],
    }


def given_answer(record: Record) -> str:
    """Return the answer that a foreign agent gave, else that in the last turn, or "" without one.

    It is the boxed value or the last line of the last answer block, or of the turn if it has no block and the
    trajectory was not truncated. Thoughts and tool calls are excluded.
    """
    turns, given = record.get("turns") or (), record.get("given") or {}
    if given.get("answer") is not None:
        return str(given["answer"])
    if not turns:
        return ""
    form = TurnForm(**turns[-1].get("form", {}))
    text = without_tool_calls(str(turns[-1].get("text", "")), form, cuts_thoughts=True)
    start = text.rfind("<answer>", 0, max(0, text.rfind("</answer>")))
    if start >= 0:
        text = text[start + len("<answer>") : text.find("</answer>", start)]
    return final_answer(text) if start >= 0 or record.get("finish_reason") not in TRUNCATED else ""


def tokens(
    record: Record, texts: TokenTexts, learned: LearnedTokens | None, *, start: int, stop: int
) -> dict[str, Any]:
    """Return the columns of tokens [start, stop), at most PAGE_TOKENS, with the record's exact numbers.

    If the record has one advantage, each token of the policy has it. `learner` has the learner's values of
    each token, as exact as engine/record/learned.py stores them; None if it did not learn from the record.
    """
    ids = record.get("ids") or []
    start = min(start, len(ids))
    stop = max(start, min(len(ids), stop, start + PAGE_TOKENS))
    logprobs = record.get("logprobs") or []
    origins = _spread(stop - start, start, _origins(record), "prompt")
    return {
        "start": start,
        "total": len(ids),
        "ids": ids[start:stop],
        "texts": texts(ids[start:stop]),
        "logprobs": logprobs[start:stop],
        "origins": origins,
        "versions": _spread(stop - start, start, record.get("version_spans") or (), None),
        "advantages": _advantages(record, start, [origin == "policy" for origin in origins]),
        "learner": _learner(record, learned, start, stop),
    }


def _learner(record: Record, learned: LearnedTokens | None, start: int, stop: int) -> dict[str, list[Any]] | None:
    """Return the learner's values of tokens [start, stop), None for a missing or not finite one."""
    columns = _learned_columns(record, learned)
    if not columns:
        return None
    part = {name: column[start:stop] for name, column in columns.items()}
    shown = {
        "logprobs": _logprobs(record)[start:stop] + part["gaps"],
        "importance": np.exp(part["gaps"]),
        "ratios": np.exp(part["log_ratios"]),
        "entropies": part["entropies"],
    }
    found: dict[str, list[Any]] = {
        name: [value if math.isfinite(value) else None for value in column.tolist()] for name, column in shown.items()
    }
    return found | {"codes": [None if math.isnan(code) else int(code) for code in part["codes"].tolist()]}


def _learned_columns(record: Record, learned: LearnedTokens | None) -> dict[str, Column]:
    """Return the columns of `learned` over all tokens, NaN except at the policy's; {} if it is not of this
    record."""
    spans = [np.arange(a, b) for a, b, origin in _origins(record) if origin == "policy"]
    places = np.concatenate(spans) if spans else np.zeros(0, int)
    if learned is None or len(learned) != len(places):
        return {}
    columns = {}
    for name in ("gaps", "log_ratios", "entropies", "codes"):
        values = getattr(learned, name)
        columns[name] = np.full(len(record.get("ids") or ()), np.nan, np.result_type(values, np.float32))
        columns[name][places] = values
    return columns


def _logprobs(record: Record) -> Column:
    """Return the rollout's log-probs, NaN if unknown."""
    return np.array([np.nan if p is None else p for p in record.get("logprobs") or ()], float)


def overview(record: Record, learned: LearnedTokens | None, bins: int) -> dict[str, Any]:
    """Return the trajectory in at most `bins` parts of equal length, with the main origin of each.

    `measures` has the maximum and mean of each part by name: the surprise of its tokens (minus log-prob),
        and, if the learner used it, the entropy, the difference of learner and rollout log-probs, the
        distance of the ratio from 1, and the share of clipped tokens.
    """
    logprobs = _logprobs(record)
    total = len(logprobs)
    bins = max(1, min(bins, MAX_BINS, total or 1))
    edges = np.linspace(0, total, bins + 1).astype(int)
    origins = np.array(_spread(total, 0, _origins(record), "prompt"), dtype="U6")
    writers: list[str] = []
    for a, b in itertools.pairwise(edges.tolist()):
        names, counts = np.unique(origins[a:b], return_counts=True)
        writers.append(str(names[counts.argmax()]) if len(names) else "prompt")
    columns = {"surprise": -logprobs}
    if found := _learned_columns(record, learned):
        columns["entropy"] = found["entropies"]
        columns["gap"], columns["ratio"] = np.abs(found["gaps"]), np.abs(found["log_ratios"])
        columns["clip"] = np.minimum(found["codes"], 1.0)
    measures = {name: _parts(column.astype(float), edges) for name, column in columns.items()}
    return {"total": total, "edges": edges.tolist(), "origins": writers, "measures": measures}


def _parts(column: Column, edges: Column) -> dict[str, list[float | None]]:
    """The greatest and the mean value between each two edges; None where there is none."""
    greatest: list[float | None] = []
    means: list[float | None] = []
    for a, b in itertools.pairwise(edges.tolist()):
        known = column[a:b][~np.isnan(column[a:b])]
        greatest.append(float(known.max()) if len(known) else None)
        means.append(float(known.mean()) if len(known) else None)
    return {"max": greatest, "mean": means}


def _origins(record: Record) -> list[tuple[int, int, str]]:
    return [(s["start"], s["end"], str(s["origin"])) for s in record.get("segments") or ()]


def _spread(num: int, first: int, spans: Any, default: Any) -> list[Any]:
    """Return the span's value for each of `num` tokens from `first` on."""
    values = [default] * num
    for start, end, value in spans:
        a, b = max(start, first) - first, min(end, first + num) - first
        if a < b:
            values[a:b] = [value] * (b - a)
    return values


def _advantages(record: Record, start: int, is_policy: Sequence[bool]) -> list[float | None]:
    """Return the advantage of each token, or None for a token without one."""
    advantage = record.get("advantage")
    if advantage is None:
        return [None] * len(is_policy)
    if not isinstance(advantage, list):
        return [float(advantage) if mine else None for mine in is_policy]
    at = sum(max(0, min(end, start) - a) for a, end, origin in _origins(record) if origin == "policy")
    column: list[float | None] = []
    for mine in is_policy:
        column.append(advantage[at] if mine and at < len(advantage) else None)
        at += mine
    return column


def pieces(turn: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """The policy's text of a turn with its tool calls in their places: `name`, `arguments` (pairs of name or
    None, and text), `is_error`, `status` and `result`."""
    text, calls, end = str(turn.get("text", "")), list(turn.get("calls") or []), 0
    spans = tool_call_spans(text, TurnForm(**turn.get("form", {})))
    for span, call in itertools.zip_longest(spans, calls):
        raw = ""
        if span is not None:
            yield text[end : span[0]]
            raw, end = text[slice(*span)], span[1]
        yield raw if call is None else _shown(call, raw)
    yield text[end:]


def _shown(call: Mapping[str, Any], raw: str) -> Mapping[str, Any]:
    """The program and the other arguments (or what could not be decoded), the status and the result."""
    arguments, malformed = call.get("arguments"), call.get("malformed")
    readable = arguments if isinstance(arguments, Mapping) and not malformed else None
    return {
        "name": "undecodable call" if readable is None else str(call.get("name")),
        "arguments": [(None, raw)] if readable is None else _arguments(readable),
        "is_error": bool(call.get("is_error")),
        "status": str(call.get("status", "")) + (f": {malformed}" if malformed else ""),
        "result": str(call.get("result", "")).rstrip(),
    }


def _arguments(arguments: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """Return the program without its name, then every other argument as text, or as JSON if it is none."""
    alone = CODE if CODE in arguments else next(iter(arguments)) if len(arguments) == 1 else None
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        for name, value in arguments.items()
    }
    return [*([] if alone is None else [(None, texts.pop(alone))]), *texts.items()]
