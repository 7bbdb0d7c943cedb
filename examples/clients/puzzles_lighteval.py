"""The 20 puzzles, for lighteval: the agent answers, and its boxed answer counts.

    lighteval endpoint litellm MODEL "custom|rocstar_puzzles|0|0" --custom-tasks puzzles_lighteval.py

MODEL is `model_name=openai/rocstar-agent,base_url=http://127.0.0.1:8000/v1,api_key=none` and the sampling
parameters. The questions are the data set that README.md describes, in the folder in which lighteval is
started: it imports a copy of this file.
"""

import re
from pathlib import Path

from lighteval.metrics.utils.metric_utils import MetricCategory, MetricUseCase, SampleLevelMetric
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc

BOXED = re.compile(r"<answer>\s*\\boxed\{(.*?)\}\s*</answer>")


def boxed(golds: list[str], predictions: list[str], **_: object) -> float:
    """1 where the box holds the answer."""
    found = BOXED.search(predictions[0])
    return float(found is not None and found[1] in golds)


def mean(values: list[float]) -> float:
    """Return the prompt of a puzzle; a named function, because lighteval pickles it."""
    return sum(values) / len(values)


def asked(row: dict[str, str], task_name: str) -> Doc:
    """A row as lighteval asks it."""
    return Doc(task_name=task_name, query=row["question"], choices=[row["answer"]], gold_index=0)


TASKS_TABLE = [
    LightevalTaskConfig(
        name="rocstar_puzzles",
        suite=["custom"],
        prompt_function=asked,
        hf_repo=str(Path.cwd()),
        hf_subset="puzzles",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        generation_size=160,
        stop_sequence=[],
        metric=[
            SampleLevelMetric(
                metric_name="boxed",
                higher_is_better=True,
                category=MetricCategory.GENERATIVE,
                use_case=MetricUseCase.REASONING,
                sample_level_fn=boxed,
                corpus_level_fn=mean,
            )
        ],
    )
]
