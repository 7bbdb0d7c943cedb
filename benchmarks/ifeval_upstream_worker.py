"""The original checker of IFEval (lm-eval's copy), in an environment of its own: rows in, verdicts out.

    python ifeval_upstream_worker.py < CASES > VERDICTS

Each case is a line {"row": {key, prompt, instruction_id_list, kwargs}, "response"}, each verdict one
{"strict": [...], "loose": [...]}. Language detection is seeded with 0. An instruction about a character that
is no letter is judged 101 times, and the more frequent verdict taken: the original draws a letter for each.

The environment needs lm-eval, nltk with its data punkt_tab, and langdetect. lm_eval itself is not imported,
only the four files of its task, so that torch is not needed.
"""

import collections
import importlib.util
import json
import logging
import random
import string
import sys
import types
from pathlib import Path

REPEATS = 101
LETTER = "keywords:letter_frequency"


def load_original():
    """The module lm_eval.tasks.ifeval.utils, without what lm_eval imports besides."""
    (where,) = importlib.util.find_spec("lm_eval").submodule_search_locations
    for name, path in (("lm_eval", ""), ("lm_eval.tasks", "tasks"), ("lm_eval.tasks.ifeval", "tasks/ifeval")):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(where) / path)]
        sys.modules[name] = package
    return importlib.import_module("lm_eval.tasks.ifeval.utils")


def judge(original, row, response):
    """Both verdicts of one response."""
    kwargs = [{key: value for key, value in given.items() if value} for given in row["kwargs"]]
    sample = original.InputExample(
        key=row["key"], instruction_id_list=row["instruction_id_list"], prompt=row["prompt"], kwargs=kwargs
    )
    return {
        "strict": original.test_instruction_following_strict(sample, response).follow_instruction_list,
        "loose": original.test_instruction_following_loose(sample, response).follow_instruction_list,
    }


def is_random(row):
    return any(
        name == LETTER and given["letter"].strip().lower() not in string.ascii_lowercase
        for name, given in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    )


def most_frequent(verdicts):
    columns = zip(*verdicts, strict=True)
    return [collections.Counter(column).most_common(1)[0][0] for column in columns]


def main():
    import langdetect

    langdetect.DetectorFactory.seed = 0
    logging.disable(logging.CRITICAL)
    random.seed(0)
    original = load_original()
    for line in sys.stdin:
        case = json.loads(line)
        repeats = REPEATS if is_random(case["row"]) else 1
        found = [judge(original, case["row"], case["response"]) for _ in range(repeats)]
        verdict = {kind: most_frequent([one[kind] for one in found]) for kind in ("strict", "loose")}
        print(json.dumps(verdict))


if __name__ == "__main__":
    main()
