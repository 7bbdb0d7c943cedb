"""One template for each way in which published models write calls, all in one ChatML frame.

What differs between families, and is copied from none of them, is how a call is written.
"""

from dataclasses import dataclass
from functools import cache

from rocstar.engine.chat.boundaries import render
from rocstar.engine.chat.chat import ChatFormat
from rocstar.engine.tools.python import PYTHON_SCHEMA
from tests.fakes.scripted_policy import CHATML_TOKENS, ByteTokenizer

FRAME = r"""
{{- '<|im_start|>system\n' }}{% for t in tools or [] %}{{- t | tojson }}{% endfor %}{{- '<|im_end|>\n' }}
{%- for m in messages %}
  {%- if m.role == 'tool' %}{{- '<|im_start|>user\n<result>' + m.content + '</result><|im_end|>\n' }}
  {%- else %}{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}
    {%- if m.tool_calls %}CALLS{%- endif %}{{- '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
EACH = "{%- for c in m.tool_calls %}{%- set f = c.function %}ONE{%- endfor %}"
AS_PYTHON = (
    "{{- f.name + '(' }}{%- for k, v in f.arguments | items %}{{- (', ' if not loop.first) }}"
    "{{- k + '=' + (v | tojson) }}"
    "{%- endfor %}{{- ')' }}{{- (', ' if not loop.last) }}"
)
JSON = "f.arguments | tojson"


@dataclass(frozen=True)
class Family:
    """`form`: a call form, or words of the refusal."""

    form: str
    calls: str


def each(one: str) -> str:
    return EACH.replace("ONE", one)


XML = (
    "{{- '<tool_call>\\n<function=' + f.name + '>\\n' }}{%- for k, v in f.arguments | items %}"
    "{{- '<parameter=' + k + '>\\n' }}{{- v if v is string else (v | tojson) }}{{- '\\n</parameter>\\n' }}"
    "{%- endfor %}{{- '</function>\\n</tool_call>' }}"
)
FAMILIES = {
    "hermes": Family(
        "hermes",
        each(
            '{{- \'<tool_call>\\n{"name": "\' + f.name + \'", "arguments": \' + ('
            + JSON
            + ") + '}\\n</tool_call>' }}"
        ),
    ),
    "xml": Family("xml", each(XML)),
    "xml with words of Python": Family("xml", each(XML.replace("(v | tojson)", "(v | string)"))),
    "llama": Family(
        "llama",
        each(
            '{{- \'{"name": "\' + f.name + \'", "parameters": \' + (' + JSON + ") + '}' }}"
            "{{- ('; ' if not loop.last) }}"
        ),
    ),
    "llama, one call a turn": Family(
        "llama",
        "{%- if m.tool_calls | length > 1 %}{{- raise_exception('single tool-calls') }}{%- endif %}"
        + each('{{- \'<|python_tag|>{"name": "\' + f.name + \'", "parameters": \' + (' + JSON + ") + '}' }}"),
    ),
    "pythonic": Family("pythonic", "{{- '[' }}" + each(AS_PYTHON) + "{{- ']' }}"),
    "lfm": Family("lfm", "{{- '<|tool_call_start|>[' }}" + each(AS_PYTHON) + "{{- ']<|tool_call_end|>' }}"),
    "lfm without escapes": Family(
        "in the form 'lfm', but the call calculate",
        "{{- '<|tool_call_start|>[' }}"
        + each(AS_PYTHON.replace("(v | tojson)", "'\"' + v + '\"'"))
        + "{{- ']<|tool_call_end|>' }}",
    ),
    "mistral": Family(
        "mistral",
        "{{- '[TOOL_CALLS] [' }}"
        + each(
            '{{- \'{"name": "\' + f.name + \'", "arguments": \' + ('
            + JSON
            + ") + ', \"id\": \"' + c.id + '\"}' }}"
            "{{- (', ' if not loop.last) }}"
        )
        + "{{- ']' }}",
    ),
    "mistral with arguments behind the name": Family(
        "mistral", each("{{- '[TOOL_CALLS]' + f.name + '[CALL_ID]' + c.id + '[ARGS]' + (" + JSON + ") }}")
    ),
    "mistral, newest": Family("mistral", each("{{- '[TOOL_CALLS]' + f.name + '[ARGS]' + (" + JSON + ") }}")),
    "arguments as text in text": Family(
        "in a form that no parser here reads",
        each(
            "{{- '<tool_call>' + ({'name': f.name, 'arguments': f.arguments | tojson} | tojson) }}"
            "{{- '</tool_call>' }}"
        ),
    ),
    "deepseek": Family(
        "DeepSeek's",
        "{{- '<｜tool▁calls▁begin｜>' }}"
        + each(
            "{{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + ("
            + JSON
            + ") + '<｜tool▁call▁end｜>' }}"
        )
        + "{{- '<｜tool▁calls▁end｜>' }}",
    ),
    "kimi": Family(
        "Kimi K2's",
        "{{- '<|tool_calls_section_begin|>' }}"
        + each(
            "{{- '<|tool_call_begin|>functions.' + f.name + '<|tool_call_argument_begin|>' + ("
            + JSON
            + ") }}"
        ),
    ),
    "glm": Family(
        "GLM 4's",
        each(
            "{{- '<tool_call>' + f.name }}{%- for k, v in f.arguments | items %}"
            "{{- '\\n<arg_key>' + k + '</arg_key>\\n<arg_value>' + v + '</arg_value>' }}{%- endfor %}"
            "{{- '\\n</tool_call>' }}"
        ),
    ),
    "minimax": Family(
        "MiniMax M2's",
        each(
            "{{- '<minimax:tool_call><invoke name=\"' + f.name + '\">' }}"
            "{%- for k, v in f.arguments | items %}"
            "{{- '<parameter name=\"' + k + '\">' + v + '</parameter>' }}{%- endfor %}"
            "{{- '</invoke></minimax:tool_call>' }}"
        ),
    ),
    "harmony": Family(
        "gpt-oss's",
        each("{{- '<|channel|>commentary to=functions.' + f.name + '<|message|>' + (" + JSON + ") }}"),
    ),
    "command r": Family(
        "Command R's",
        "{{- '<|START_ACTION|>[' }}"
        + each("{{- {'tool_name': f.name, 'parameters': f.arguments} | tojson }}")
        + "{{- ']<|END_ACTION|>' }}",
    ),
    "phi-4-mini": Family(
        "Phi-4-mini's",
        "{{- '<|tool_call|>[' }}"
        + each("{{- {'name': f.name, 'arguments': f.arguments} | tojson }}")
        + "{{- ']<|/tool_call|>' }}",
    ),
    "gemma 3": Family("Gemma 3's", "{{- '```tool_code\\n' }}" + each(AS_PYTHON) + "{{- '\\n```' }}"),
    "one that nobody knows": Family("(unknown)", each("{{- '@' + f.name + ' ' + (" + JSON + ") }}")),
}


def template_of(family: str) -> str:
    return FRAME.strip().replace("CALLS", FAMILIES[family].calls)


@cache
def chat_of(family: str) -> ChatFormat:
    """The format of a family. ChatError for a form that is not read."""
    tokenizer = ByteTokenizer(special=CHATML_TOKENS, corpus=(), vocab_size=256)
    return ChatFormat(tokenizer, template_of(family), [PYTHON_SCHEMA])


def written_by(family: str, calls: list[dict[str, object]]) -> str:
    """The calls of one turn as the template writes them, without its frame."""
    user = {"role": "user", "content": "q"}
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    template, chat = template_of(family), chat_of(family)
    whole = render(template, [user, turn], [PYTHON_SCHEMA], generation_prompt=False)
    lead = render(template, [user], [PYTHON_SCHEMA], generation_prompt=True)
    return whole.removeprefix(lead).removesuffix(chat.boundaries.end)
