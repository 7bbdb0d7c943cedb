"""What the judge is told: our own words, or those of the user's copy of the original configuration.

Scores are comparable with published ones under the original's words alone, so a record says which were used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstar.train.recipe.errors import ConfigError

OUR_SYSTEM = """\
You compare two answers to the same request, A and B. Work the request out yourself first, and find what is \
wrong or missing in each answer. What counts, in this order: that it is right, that it does what was asked, \
that nothing important is missing, that nothing is superfluous. Neither the order nor the length of the \
answers counts.

Give your reasons, and end with exactly one of these labels:
[[A>>B]] A is much better
[[A>B]] A is somewhat better
[[A=B]] they are about equal
[[B>A]] B is somewhat better
[[B>>A]] B is much better
"""
OUR_TEMPLATE = """\
## Request
{QUESTION}

## Answer A
{ANSWER_A}

## Answer B
{ANSWER_B}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePrompt:
    """The judge's instructions and the form of a game.

    `template` names QUESTION, ANSWER_A and ANSWER_B in braces, or question_1, answer_1 and answer_2.
    """

    system: str
    template: str
    origin: str

    def messages(self, question: str, answer_a: str, answer_b: str) -> list[dict[str, str]]:
        """Return a game as chat messages. Braces in texts mean nothing."""
        game = self.template.format(
            QUESTION=question,
            ANSWER_A=answer_a,
            ANSWER_B=answer_b,
            question_1=question,
            answer_1=answer_a,
            answer_2=answer_b,
        )
        return [{"role": "system", "content": self.system}, {"role": "user", "content": game}]

    @property
    def digest(self) -> str:
        """SHA-256 of the system message and the template."""
        return hashlib.sha256(f"{self.system}\0{self.template}".encode()).hexdigest()


OUR_PROMPT = JudgePrompt(system=OUR_SYSTEM, template=OUR_TEMPLATE, origin="rocstar")


def read_prompt(path: Path) -> JudgePrompt:
    """Return the words of the original's config/judge_config.yaml; ConfigError for a file of another form."""
    import yaml

    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        system, template = found["system_prompt"], found["prompt_template"]
        template = template[0] if isinstance(template, list) else template
        prompt = JudgePrompt(system=system, template=template, origin=path.name)
        prompt.messages("", "", "")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"the judge's configuration {str(path)!r} cannot be read: {error}; give the original's "
            "config/judge_config.yaml"
        ) from None
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise ConfigError(
            f"the judge's configuration {str(path)!r} has no system_prompt and prompt_template; give the "
            "original's config/judge_config.yaml of Arena-Hard v0.1, or none for rocstar's own words"
        ) from None
    return prompt
