"""Templates render here as transformers renders them, dates apart, which are fixed by the recipe."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rocstar.engine.chat.boundaries import ChatError, Rendering, bundled_templates, load_template, shows_date
from rocstar.engine.tools.python import PYTHON_SCHEMA

from .template_families import FAMILIES, template_of

UPSTREAM = Path(__file__).parents[1] / "templates"
SAID = "{% for m in messages %}{{ '<' + m.role + '>' }}BODY{% endfor %}"
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"code": "a\n\"é\" < '&'"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " s "},
    {"role": "user", "content": "q <b>"},
    {"role": "assistant", "content": "<think>\nt\n</think>\n\nc", "tool_calls": [CALL]},
    {"role": "tool", "name": "f", "tool_call_id": "call00001", "content": "1\n"},
    {"role": "assistant", "content": "a"},
]
TEMPLATES = {
    "generation": SAID.replace("BODY", "{% generation %}{{ m.content }}{% endgeneration %}"),
    "a name set inside of it": "{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}",
    "loop controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}x{% endfor %}",
    "JSON": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "JSON's options": "{{ messages[0] | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}",
    "blocks are trimmed": "  {% if true %}\n  x\n  {% endif %}\n y",
    "dict": "{{ dict(a=1) | tojson }}{{ dict.fromkeys(['a'], 1) | tojson }}",
    "namespace": "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ tools | length }}",
    "what is not there": "[{{ nothing }}][{{ messages[0].nothing }}]",
    **{name: load_template(name, None) for name in bundled_templates()},
    **{path.stem + "'s own": path.read_text(encoding="utf-8") for path in UPSTREAM.glob("*.jinja")},
    **{family: template_of(family) for family in FAMILIES if family != "lfm without escapes"},
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generation_prompt", [False, True])
def test_a_template_renders_as_transformers_renders_it(name: str, generation_prompt: bool) -> None:
    tools = [PYTHON_SCHEMA]
    ((theirs,), _) = render_jinja_template(
        [MESSAGES], chat_template=TEMPLATES[name], tools=tools, add_generation_prompt=generation_prompt, **SPECIAL
    )
    assert Rendering(TEMPLATES[name], **SPECIAL)(MESSAGES, tools, generation_prompt) == theirs


def test_a_date_is_the_recipes() -> None:
    template = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"
    assert Rendering(template, date="2026-01-31")([], None) == "31 Jan 2026"
    today = datetime.now().date().isoformat()
    ((theirs,), _) = render_jinja_template([[]], chat_template=template)
    assert Rendering(template, date=today)([], None) == theirs


@pytest.mark.parametrize("date", ["", "tomorrow", "2026-02-30"])
def test_a_template_that_shows_the_date_needs_one(date: str) -> None:
    with pytest.raises(ChatError, match=rf"strftime_now.*model\.date = '{date}' is none: set model\.date to"):
        Rendering("{{ strftime_now('%Y') }}", date=date)([], None)


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        ("{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}", True),
        ("{% generation %}{% if false %}{{ strftime_now('%Y') }}{% endif %}{% endgeneration %}", True),
        ("{# strftime_now #}{{ 'strftime_now' }}", False),
        ("{% set strftime_now = 1 %}{{ strftime_now }}", False),
    ],
)
def test_a_template_shows_the_date_if_it_may_ask_for_it(template: str, shows: bool) -> None:
    assert shows_date(template) == shows


@pytest.mark.parametrize("template", ["{% if %}", {"default": "", "rag": ""}])
def test_a_template_that_cannot_be_read_is_refused(template: Any) -> None:
    with pytest.raises(ChatError, match="cannot be read"):
        shows_date(template)
