"""JSON schemas of all bodies and answers, generated from the models that are decoded and encoded."""

from typing import Any

import msgspec

from rocstar.sandbox.service import answers
from rocstar.sandbox.service.models import BodyModel, models_of
from rocstar.sandbox.service.rules import Rules

Schema = dict[str, Any]

ANSWERS: tuple[Any, ...] = (
    *(answers.Result, answers.Failure, answers.Outcomes, answers.OutcomeLine, answers.SessionId),
    *(answers.SessionList, answers.SessionFiles),
    *(answers.RunAnswer, answers.RunAnswers, answers.JudgeAnswer, answers.JudgeAnswers, answers.QueueStatus),
    *(answers.CodeAnswer, answers.NotebookAnswer, answers.Observations, answers.ToolServerHealth),
    *(answers.Healthy, answers.Ready, answers.Refusal, answers.Mistakes),
)


def ref(name: str) -> Schema:
    return {"$ref": answers.REF.format(name=name)}


def schemas(rules: Rules) -> dict[str, Schema]:
    """All of them by name, with the bounds of this service."""
    models = models_of(rules)
    bodies: list[BodyModel[Any]] = [
        *(models.run, models.batch, models.session, models.cell),
        *(models.submission, models.submissions, models.code_run, models.notebook),
        models.actions,
    ]
    kinds = [*(body.type for body in bodies), *ANSWERS]
    _, found = msgspec.json.schema_components(kinds, ref_template=answers.REF)
    return {**found, "Pong": msgspec.json.schema(answers.Pong)}
