"""The 20 puzzles, for lighteval: the agent answers, and what stands in its box counts.

mkdir -p puzzles && cp questions.jsonl puzzles/test.jsonl
lighteval endpoint litellm "model_name=openai/rocstar-agent,provider=openai,base_url=http://127.0.0.1:8000/v1,
    api_key=none,max_model_length=1024,generation_parameters={temperature:0.0}" rocstar_puzzles
    --custom-tasks puzzles_lighteval.py --save-details
"""

import re

from lighteval.metrics.metrics_sample import SampleLevelComputation
from lighteval.metrics.utils.metric_utils import SampleLevelMetric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod

BOXED = re.compile(r"<answer>\s*\\boxed\{(.*?)\}\s*</answer>")


class Boxed(SampleLevelComputation):
    """1 where the box holds the answer."""

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: object) -> float:
        found = BOXED.search(model_response.text[0])
        return float(found is not None and found.group(1) == doc.choices[doc.gold_index])


def asked(row: dict[str, str], task_name: str) -> Doc:
    return Doc(task_name=task_name, query=row["question"], choices=[row["answer"]], gold_index=0)


TASKS_TABLE = [
    LightevalTaskConfig(
        name="rocstar_puzzles",
        prompt_function=asked,
        hf_repo="puzzles",
        hf_subset="default",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        generation_size=160,
        stop_sequence=[],
        metrics=[
            SampleLevelMetric(
                metric_name="boxed",
                higher_is_better=True,
                category=SamplingMethod.GENERATIVE,
                sample_level_fn=Boxed(),
                corpus_level_fn=lambda values: sum(values) / len(values),
            )
        ],
    )
]
