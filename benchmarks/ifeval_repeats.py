"""Whether IFEval's verdicts stay the same however often they are asked for.

    python benchmarks/ifeval_repeats.py --rows input_data.jsonl --responses responses.jsonl \
        --out benchmarks/results/ifeval_repeats.json

`--rows` is the published file, `--responses` holds a {"prompt", "response"} line for each of its prompts (the
authors published those of GPT-4). Each response is judged `--repeats` times, by `--processes` processes one
after the other, each of which hashes with another seed and forgets the detected languages every time. No text
is kept.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

from rocstar.train.evaluation.benchmarks.ifeval.ifeval import load
from rocstar.train.evaluation.benchmarks.ifeval.languages import language
from rocstar.train.evaluation.benchmarks.ifeval.verdicts import followed, instructions_of


def cases_of(rows, responses):
    """(task, response) of each prompt; the authors mended one prompt after the fact."""
    lines = [json.loads(line) for line in responses.read_text(encoding="utf-8").splitlines()]
    said = {line["prompt"]: line["response"] for line in lines}
    begun = {line["prompt"][:40]: line["response"] for line in lines}
    return [(task, said.get(task.question) or begun[task.question[:40]]) for task in load(rows)]


def digest_of(verdicts):
    return hashlib.sha256(repr(verdicts).encode()).hexdigest()


def judged(cases, repeats):
    """The digest of all verdicts, and the prompts in which a repeat differs, as one process finds them."""
    first, differ = None, set()
    for _ in range(repeats):
        language.cache_clear()
        verdicts = [followed(instructions_of(task.meta), response) for task, response in cases]
        first = first or verdicts
        differ |= {task.id for (task, _), one, two in zip(cases, first, verdicts, strict=True) if one != two}
    return {"digest": digest_of(first), "differ": sorted(differ)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--responses", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, help="judge here, as one of the processes")
    options = parser.parse_args()
    share = options.repeats // options.processes
    cases = cases_of(options.rows, options.responses)
    if options.seed is not None:
        print(json.dumps(judged(cases, share)))
        return
    began, found = time.perf_counter(), []
    for seed in range(options.processes):
        done = subprocess.run(
            [sys.executable, *sys.argv, f"--seed={seed}"],
            env={"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            check=True,
        )
        found.append(json.loads(done.stdout))
    result = {
        "prompts": len(cases),
        "instructions": sum(len(instructions_of(task.meta)) for task, _ in cases),
        "repeats": share * options.processes,
        "processes": options.processes,
        "prompts_that_differ": len(set().union(*(one["differ"] for one in found))),
        "verdicts_of_processes": len({one["digest"] for one in found}),
        "seconds": round(time.perf_counter() - began, 1),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
