"""One template for each way in which published models write calls, all in one ChatML frame.

What differs between families, and is copied from none of them, is how a call is written.
"""

from functools import cache

from rocstar.engine.chat.boundaries import Rendering
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


def each(one: str) -> str:
    """Return the template of all calls of a message. AS_JSON: the arguments of a call."""
    return EACH.replace("ONE", one.replace("AS_JSON", "(f.arguments | tojson)"))


def around(begin: str, calls: str, end: str) -> str:
    return "{{- '" + begin + "' }}" + calls + "{{- '" + end + "' }}"


XML = (
    r"{{- '<tool_call>\n<function=' + f.name + '>\n' }}{%- for k, v in f.arguments | items %}"
    r"{{- '<parameter=' + k + '>\n' }}{{- v if v is string else (v | tojson) }}{{- '\n</parameter>\n' }}"
    r"{%- endfor %}{{- '</function>\n</tool_call>' }}"
)
HERMES = r"""{{- '<tool_call>\n{"name": "' + f.name + '", "arguments": ' + AS_JSON + '}\n</tool_call>' }}"""
LLAMA = """{{- '{"name": "' + f.name + '", "parameters": ' + AS_JSON + '}' }}"""
ONE_CALL = "{%- if m.tool_calls | length > 1 %}{{- raise_exception('single tool-calls') }}{%- endif %}"
MISTRAL = """{{- '{"name": "' + f.name + '", "arguments": ' + AS_JSON + ', "id": "' + c.id + '"}' }}"""
UNESCAPED = AS_PYTHON.replace("(v | tojson)", "'\"' + v + '\"'")
TEXT_IN_TEXT = "({'name': f.name, 'arguments': f.arguments | tojson} | tojson)"
DEEPSEEK = "{{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + AS_JSON + '<｜tool▁call▁end｜>' }}"
KIMI = "{{- '<|tool_call_begin|>functions.' + f.name + '<|tool_call_argument_begin|>' + AS_JSON }}"
GLM = (
    "{{- '<tool_call>' + f.name }}{%- for k, v in f.arguments | items %}"
    r"{{- '\n<arg_key>' + k + '</arg_key>\n<arg_value>' + v + '</arg_value>' }}{%- endfor %}"
    r"{{- '\n</tool_call>' }}"
)
MINIMAX = (
    """{{- '<minimax:tool_call><invoke name="' + f.name + '">' }}{%- for k, v in f.arguments | items %}"""
    """{{- '<parameter name="' + k + '">' + v + '</parameter>' }}{%- endfor %}"""
    "{{- '</invoke></minimax:tool_call>' }}"
)
COMMAND_R = each("{{- {'tool_name': f.name, 'parameters': f.arguments} | tojson }}")
PHI = each("{{- {'name': f.name, 'arguments': f.arguments} | tojson }}")
FAMILIES = {
    "hermes": ("hermes", each(HERMES)),
    "xml": ("xml", each(XML)),
    "xml with words of Python": ("xml", each(XML.replace("(v | tojson)", "(v | string)"))),
    "llama": ("llama", each(LLAMA + "{{- ('; ' if not loop.last) }}")),
    "llama, one call a turn": ("llama", ONE_CALL + each(LLAMA.replace("{{- '", "{{- '<|python_tag|>"))),
    "pythonic": ("pythonic", around("[", each(AS_PYTHON), "]")),
    "lfm": ("lfm", around("<|tool_call_start|>[", each(AS_PYTHON), "]<|tool_call_end|>")),
    "lfm without escapes": (
        "in the form 'lfm', but the call calculate",
        around("<|tool_call_start|>[", each(UNESCAPED), "]<|tool_call_end|>"),
    ),
    "mistral": ("mistral", around("[TOOL_CALLS] [", each(MISTRAL + "{{- (', ' if not loop.last) }}"), "]")),
    "mistral with arguments behind the name": (
        "mistral",
        each("{{- '[TOOL_CALLS]' + f.name + '[CALL_ID]' + c.id + '[ARGS]' + AS_JSON }}"),
    ),
    "mistral, newest": ("mistral", each("{{- '[TOOL_CALLS]' + f.name + '[ARGS]' + AS_JSON }}")),
    "arguments as text in text": (
        "in a form that no parser here reads",
        each("{{- '<tool_call>' + " + TEXT_IN_TEXT + " }}{{- '</tool_call>' }}"),
    ),
    "deepseek": ("DeepSeek's", around("<｜tool▁calls▁begin｜>", each(DEEPSEEK), "<｜tool▁calls▁end｜>")),
    "kimi": ("Kimi K2's", "{{- '<|tool_calls_section_begin|>' }}" + each(KIMI)),
    "glm": ("GLM 4's", each(GLM)),
    "minimax": ("MiniMax M2's", each(MINIMAX)),
    "harmony": ("gpt-oss's", each("{{- '<|channel|>commentary to=functions.' + f.name + '<|message|>' + AS_JSON }}")),
    "command r": ("Command R's", around("<|START_ACTION|>[", COMMAND_R, "]<|END_ACTION|>")),
    "phi-4-mini": ("Phi-4-mini's", around("<|tool_call|>[", PHI, "]<|/tool_call|>")),
    "gemma 3": ("Gemma 3's", around(r"```tool_code\n", each(AS_PYTHON), r"\n```")),
    "one that nobody knows": ("(unknown)", each("{{- '@' + f.name + ' ' + AS_JSON }}")),
}
"""The call form of each family, or words of its refusal; and the template of the calls of a message."""


def template_of(family: str) -> str:
    return FRAME.strip().replace("CALLS", FAMILIES[family][1])


@cache
def chat_of(family: str) -> ChatFormat:
    """Return the format of a family. ChatError for an unsupported form."""
    tokenizer = ByteTokenizer(special=CHATML_TOKENS, corpus=(), vocab_size=256)
    return ChatFormat(tokenizer, template_of(family), [PYTHON_SCHEMA])


def written_by(family: str, calls: list[dict[str, object]]) -> str:
    """Return the calls of one turn as the template writes them, without its frame."""
    user = {"role": "user", "content": "q"}
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    render, chat = Rendering(template_of(family)), chat_of(family)
    whole = render([user, turn], [PYTHON_SCHEMA])
    lead = render([user], [PYTHON_SCHEMA], gen=True)
    return whole.removeprefix(lead).removesuffix(chat.boundaries.end)
