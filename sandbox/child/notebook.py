"""Notebook commands that are not Python: `%matplotlib inline`, `!pip install x`, `%%time`.

They are handled only if a source does not compile, so valid Python never reaches this module. The line of the
syntax error is replaced if it is a command, and the source is compiled again. Commands without effect here
are dropped; unsupported ones print one line on standard error that names the alternative.
"""

import ast
import re
import sys

COMMAND = re.compile(r"(?P<indent>\s*)(?P<target>[\w., ]+=\s*)?(?P<mark>%%?|!!?)(?P<name>\w*)(?P<rest>.*)")
HELP = re.compile(r"\s*(\?{1,2}[\w.]+|[\w.]+\?{1,2})\s*$")

RUN = frozenset({"time", "timeit", "prun", "capture"})
"""Magics whose statements run unchanged."""

DROPPED = frozenset(
    (
        *("matplotlib", "pylab", "config", "load_ext", "reload_ext", "unload_ext", "autoreload", "precision"),
        *("colors", "xmode", "pprint", "autosave", "alias_magic", "pdb", "tb", "warnings", "who", "whos"),
    )
)
"""Magics that configure or describe a notebook."""

ADVICE = {
    "pip": "packages cannot be installed: there is no network; use the packages that are there",
    "conda": "packages cannot be installed: there is no network; use the packages that are there",
    "cd": "use os.chdir()",
    "pwd": "use os.getcwd()",
    "ls": "use os.listdir()",
    "cat": "use open(NAME).read()",
    "env": "use os.environ",
    "run": "use import, or exec(open(NAME).read())",
    "writefile": "use open(NAME, 'w').write(TEXT)",
}
SHELL = "no shell commands can be run here; use Python, or the flavour bash for a whole program"
MAGIC = "there are no such commands here; use Python"


def without_commands(source: str, error: SyntaxError) -> str | None:
    """Return the source as Python with the same number of lines, or None if the syntax error is not a
    command."""
    lines = source.split("\n")
    changed = False
    for _ in range(len(lines)):
        number = (error.lineno or 0) - 1
        if not 0 <= number < len(lines) or (plain := _plain(lines, number)) is None:
            return None
        lines[number], changed = plain, True
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as next_error:
            error = next_error
            continue
        break
    return "\n".join(lines) if changed else None


def _plain(lines: list[str], number: int) -> str | None:
    """Return the Python line that replaces a command, or None."""
    line = lines[number]
    if HELP.match(line):
        return "pass"
    found = COMMAND.match(line)
    if found is None or (found["target"] and found["mark"].startswith("%%")):
        return None
    indent, target, mark, name = found["indent"], found["target"] or "", found["mark"], found["name"]
    rest = found["rest"].strip()
    if mark.startswith("%") and not name.isidentifier():
        return None
    if mark == "%%" and name not in RUN | DROPPED:
        for later in range(number + 1, len(lines)):  # the magic's lines are not Python
            lines[later] = ""
    elif mark.startswith("%") and name in RUN:
        # Other timing magics than `%time` do nothing.
        return f"{indent}{target}{rest if mark + name == '%time' and rest else 'pass'}"
    elif mark.startswith("%") and name in DROPPED:
        return f"{indent}{target}None" if target else f"{indent}pass"
    call = f"__import__({__name__!r}, fromlist=['print_advice']).print_advice({(mark + name)!r}, {rest!r})"
    return f"{indent}{target}{call}" if target else f"{indent}if {call}: pass"  # not the cell's value


def print_advice(command: str, rest: str) -> list[str]:
    """Print the alternative to a command, as one line."""
    name = command.lstrip("!%")
    words = rest.split()
    if name in ("python", "python3") and words[:2] == ["-m", "pip"]:
        name = "pip"
    advice = ADVICE.get(name, SHELL if command.startswith("!") else MAGIC)
    print(f"{command}{' ' if rest else ''}{rest}: {advice}", file=sys.stderr)
    return []
