"""Rows of a source as tasks: chosen by their fields, with a whole number as answer, judged by one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstar.train.data.build_config import CleanConfig, SourceConfig
from rocstar.train.data.candidate import Candidate, Dropped, clipped, earlier, row_name
from rocstar.train.data.choice import licence_of, refused_by_choice
from rocstar.train.data.integer_answers import read_integer
from rocstar.train.data.problem_kinds import kind_of
from rocstar.train.data.same_problem import question_key
from rocstar.train.recipe.errors import ConfigError
from rocstar.train.tasks.data import answer_text, field_of, id_of_task, question_of
from rocstar.train.tasks.messages import shown


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the tasks of one source."""

    source: SourceConfig
    clean: CleanConfig
    commercial: bool = False

    def read(self, row: Any) -> Candidate | Dropped:
        """A task, or why it is none."""
        name = row_name(row)
        if not isinstance(row, Mapping):
            return Dropped(row=name, reason="unreadable", evidence={"error": f"no object: {shown(row)}"})
        try:
            question, context = question_of(
                field_of(row, self.source.question, "the row"), self.source.question, "the row"
            )
            answer = answer_text(field_of(row, self.source.answer, "the row"), self.source.answer, "the row")
        except ConfigError as error:
            return Dropped(row=name, reason="unreadable", evidence={"error": clipped(str(error))})
        said = clipped(question)
        if refused := refused_by_choice(row, self.source, commercial=self.commercial):
            return Dropped(row=name, reason=refused[0], evidence=refused[1], shown=said)
        told = earlier(row)
        if self.clean.answers == "integer":
            value = read_integer(answer, max_digits=self.clean.max_digits)
            if isinstance(value, str):
                return Dropped(row=name, reason=value, evidence={"answer": clipped(answer)}, shown=said)
            if str(value) != answer:
                told["answer_as_written"] = clipped(answer)
            answer = str(value)
        found = kind_of(question, among=self.clean.drop)
        if found is not None:
            return Dropped(row=name, reason=found.kind, evidence={"phrase": found.phrase}, shown=said)
        asked = [*context, {"role": "user", "content": question}] if context else question
        return Candidate(
            row=name,
            id=id_of_task(question, answer, context),
            key=question_key(question, context),
            label=answer,
            problem=question,
            body={"question": asked, "answer": answer},
            licence=licence_of(row, self.source),
            told=told,
        )
