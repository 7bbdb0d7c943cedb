"""BFCL's own scorer on recorded outputs; runs in an environment of its own, without rocstar.

    PYTHON bfcl_upstream_scorer.py OUTPUTS.jsonl VERDICTS.jsonl FOLDER

PYTHON has `bfcl-eval`. Each line of OUTPUTS is {"id", "category", "kind", "text"} with one text, or in
conversations a list of texts for each user message; VERDICTS gets true or false in the same order. The model
is the one whose handler reads calls as rocstar's templates write them. FOLDER gets what `bfcl evaluate` makes
of the lines of kind "mixed", which are one for each question.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from bfcl_eval.constants.category_mapping import TEST_FILE_MAPPING, VERSION_PREFIX
from bfcl_eval.constants.eval_config import POSSIBLE_ANSWER_PATH, PROMPT_PATH
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
from bfcl_eval.eval_checker.eval_runner import get_handler, runner
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import is_empty_execute_response
from bfcl_eval.utils import is_empty_output, is_function_calling_format_output, load_file

MODEL = "Qwen/Qwen3-8B-FC"
LANGUAGES = {"java": "Java", "javascript": "JavaScript"}
HANDLER = get_handler(MODEL)


def decoded(text: str, language: str) -> Any:
    try:
        return HANDLER.decode_ast(text, language)
    except Exception:  # upstream's parser raises whatever it meets
        return None


def single(entry: dict[str, Any], due: Any, category: str, text: str) -> bool:
    language = LANGUAGES.get(category, "Python")
    calls = decoded(text, language)
    if category.endswith("relevance"):
        called = calls is not None and not is_empty_output(calls)
        return called is not category.endswith("irrelevance")
    if calls is None or not is_function_calling_format_output(calls):
        return False
    return bool(ast_checker(entry["function"], calls, due, language, category, MODEL)["valid"])


def steps(texts: list[str]) -> list[list[str]]:
    read = []
    for text in texts:
        try:
            calls = HANDLER.decode_execute(text)
        except Exception:  # as above
            continue
        if not is_empty_execute_response(calls):
            read.append(calls)
    return read


def conversation(entry: dict[str, Any], due: Any, category: str, messages: list[list[str]]) -> bool:
    if len(messages) != len(due):
        return False
    # Its objects outlive a check, by name: each output begins with new ones, as its first check does.
    for name in [name for name in vars(multi_turn_utils) if name.endswith("_instance")]:
        delattr(multi_turn_utils, name)
    return bool(multi_turn_checker([steps(m) for m in messages], due, entry, category, MODEL)["valid"])


def main(outputs: Path, verdicts: Path, folder: Path) -> None:
    entries, due = {}, {}
    for file in TEST_FILE_MAPPING.values():
        entries |= {row["id"]: row for row in load_file(PROMPT_PATH / file)}
        if (POSSIBLE_ANSWER_PATH / file).exists():
            due |= {row["id"]: row["ground_truth"] for row in load_file(POSSIBLE_ANSWER_PATH / file)}
    mixed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with outputs.open(encoding="utf-8") as lines, verdicts.open("w", encoding="utf-8") as out:
        for line in lines:
            one = json.loads(line)
            name, category, said = one["id"], one["category"], one["text"]
            judge = conversation if category.startswith("multi_turn") else single
            out.write(json.dumps(judge(entries[name], due.get(name), category, said)) + "\n")
            if one["kind"] == "mixed":
                mixed[category].append({"id": name, "result": said})
    results = folder / "results"
    (results / MODEL.replace("/", "_")).mkdir(parents=True)
    for category, rows in mixed.items():
        path = results / MODEL.replace("/", "_") / f"{VERSION_PREFIX}_{category}_result.json"
        path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    (folder / "scores").mkdir()
    runner(None, list(mixed), results, folder / "scores")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
