"""Our verdicts of IFEval against the original checker's, instruction by instruction.

    python benchmarks/ifeval_against_upstream.py --rows input_data.jsonl --responses responses.jsonl \
        [--texts texts.jsonl] --upstream-python VENV/bin/python --out benchmarks/results/ifeval_upstream.json

`--rows` is the published file. `--responses` holds {"prompt", "response"} lines (the authors published those
of GPT-4); each is judged as it is and in a dozen distortions that make instructions hold or fail. `--texts`
holds any JSON Lines with texts; each is judged as the response to the next row. The original runs as
ifeval_upstream_worker.py in an environment of its own; its verdicts come back as JSON, and no text is kept.

Instructions about a character that is no letter are counted apart: for them the original draws a letter anew
for each verdict, so that it has no verdict but only the more frequent one. Then the responses as they are are
judged `--repeats` times by us, and repeats that differ from the first are counted.
"""

import argparse
import json
import string
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rocstar.train.evaluation.benchmarks.ifeval.ifeval import load
from rocstar.train.evaluation.benchmarks.ifeval.languages import language
from rocstar.train.evaluation.benchmarks.ifeval.verdicts import followed, instructions_of

HERE = Path(__file__).parent
DISTORTIONS = {
    "as it is": lambda text: text,
    "upper": str.upper,
    "lower": str.lower,
    "no commas": lambda text: text.replace(",", ""),
    "blank first": lambda text: "\n\n" + text,
    "quoted": lambda text: f'"{text}"',
    "twice": lambda text: f"{text}\n******\n{text}!",
    "half": lambda text: text[: len(text) // 2],
    "lines as items": lambda text: "\n".join(f"* {line}" for line in text.split("\n")),
    "marked": lambda text: f"<<A title>>\n\n{text}\n***\n*one* and **two** [place]\nP.S. And so on.",
    "as JSON": lambda text: "```json\n" + json.dumps({"answer": text}) + "\n```",
    "sections": lambda text: text.replace("\n\n", "\n\nSection 1\n").replace(". ", "... "),
    "reversed": lambda text: text[::-1],
}


def prompts_match(row_prompt, prompts):
    """The response to a prompt, or to the one that begins like it: the authors mended one after the fact."""
    if row_prompt in prompts:
        return prompts[row_prompt]
    return next(response for prompt, response in prompts.items() if prompt[:40] == row_prompt[:40])


def texts_of(value):
    """All texts within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_of(part)


def cases_of(tasks, options):
    """(name, task, response) for each that is judged."""
    lines = [json.loads(line) for line in options.responses.read_text(encoding="utf-8").splitlines()]
    prompts = {line["prompt"]: line["response"] for line in lines}
    for name in options.distortions or DISTORTIONS:
        distort = DISTORTIONS[name]
        for task in tasks:
            yield name, task, distort(prompts_match(task.question, prompts))
    if options.texts:
        found = (json.loads(line) for line in options.texts.read_text(encoding="utf-8").splitlines())
        texts = [text for row in found for text in texts_of(row) if len(text) > 40]
        for number, text in enumerate(texts):
            yield "other texts", tasks[number % len(tasks)], text
    for task in tasks:
        yield "the prompt", task, task.question
        yield "empty", task, "  \n"


def original_verdicts(cases, python):
    """Of {"row", "response"} objects, in order."""
    done = subprocess.run(
        [python, str(HERE / "ifeval_upstream_worker.py")],
        input="\n".join(map(json.dumps, cases)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def upstream_verdicts(cases, python):
    """The original's, in order."""
    rows = [
        {
            "row": {
                "key": task.meta["key"],
                "prompt": task.question,
                "instruction_id_list": task.meta["instruction_id_list"],
                "kwargs": task.meta["kwargs"],
            },
            "response": response,
        }
        for _, task, response in cases
    ]
    return original_verdicts(rows, python)


def is_drawn(instruction):
    """Whether the original judges another letter each time."""
    letter = instruction.arguments.get("letter", "a").strip().lower()
    return letter not in string.ascii_lowercase


def record(file, python):
    """Fill in the verdicts of a file of instructions and responses: a 0 or 1 for each response."""
    recording = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        {"key": 0, "prompt": "", "instruction_id_list": [one["id"]], "kwargs": [one["arguments"]]}
        for one in recording["instructions"]
    ]
    cases = [{"row": row, "response": response} for row in rows for response in recording["responses"]]
    verdicts = original_verdicts(cases, python)
    width = len(recording["responses"])
    for mode in ("strict", "loose"):
        flags = "".join(str(int(verdict[mode][0])) for verdict in verdicts)
        recording[mode] = [flags[start : start + width] for start in range(0, len(flags), width)]
    file.write_text(json.dumps(recording, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def levels(verdicts):
    """Accuracy by prompt and by instruction, in percent."""
    flat = [one for verdict in verdicts for one in verdict]
    return {
        "prompt": 100 * sum(map(all, verdicts)) / len(verdicts),
        "instruction": 100 * sum(flat) / len(flat),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--record", type=Path, help="fill in the verdicts of this recording, and nothing else"
    )
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--responses", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--distortions", nargs="*", choices=list(DISTORTIONS), help="these alone")
    parser.add_argument("--upstream-python", required=True)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=int, default=0, help="print so many differences, with their responses")
    options = parser.parse_args()
    if options.record:
        record(options.record, options.upstream_python)
        return
    if not (options.rows and options.responses):
        parser.error("give --rows and --responses, or --record")
    tasks = load(options.rows)
    cases = list(cases_of(tasks, options))
    began = time.perf_counter()
    ours = [followed(instructions_of(task.meta), response) for _, task, response in cases]
    ours_s = time.perf_counter() - began
    theirs = upstream_verdicts(cases, options.upstream_python)
    judged, differ, kinds, drawn = Counter(), Counter(), Counter(), Counter()
    for (name, task, response), mine, other in zip(cases, ours, theirs, strict=True):
        for mode in ("strict", "loose"):
            for instruction, one, two in zip(
                instructions_of(task.meta), getattr(mine, mode), other[mode], strict=True
            ):
                if is_drawn(instruction):
                    drawn["same" if one is two else "differ"] += 1
                    continue
                judged[name] += 1
                if one is not two:
                    differ[name] += 1
                    kinds[instruction.id] += 1
                    if sum(differ.values()) <= options.show:
                        print(name, mode, instruction, "ours", one, repr(response[:400]), file=sys.stderr)
    plain = len(tasks)
    again = 0
    for _ in range(options.repeats):
        language.cache_clear()
        again += sum(
            followed(instructions_of(task.meta), response) != mine
            for (_, task, response), mine in zip(cases[:plain], ours[:plain], strict=True)
        )
    result = {
        "prompts": plain,
        "responses": len(cases),
        "verdicts": sum(judged.values()),
        "verdicts_that_differ": sum(differ.values()),
        "by_response": {name: {"verdicts": judged[name], "differ": differ[name]} for name in judged},
        "by_kind": dict(kinds),
        "verdicts_drawn_by_the_original": dict(drawn),
        **({"repeats": options.repeats, "repeats_that_differ": again} if options.repeats else {}),
        "plain_strict_percent": levels([one.strict for one in ours[:plain]]),
        "plain_loose_percent": levels([one.loose for one in ours[:plain]]),
        "plain_fixed_percent": levels([one.fixed for one in ours[:plain]]),
        "upstream_strict_percent": levels([one["strict"] for one in theirs[:plain]]),
        "upstream_loose_percent": levels([one["loose"] for one in theirs[:plain]]),
        "ours_ms_per_response": round(1000 * ours_s / len(cases), 2),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
