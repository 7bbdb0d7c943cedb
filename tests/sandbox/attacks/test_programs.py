"""The attack programs as data, and the judge that says what came of one. Nothing is run here."""

import ast
import re
from pathlib import Path

import pytest

from rocstar.sandbox.attacks import catalogue as attack_programs
from rocstar.sandbox.attacks import run as attack
from rocstar.sandbox.attacks.catalogue import GROUPS, Part, PartResult, Program, judge, load_programs, parse
from rocstar.sandbox.types import Limits

from ...patience import PATIENCE_S

PROGRAMS = load_programs()
SIMPLE = """# group: files
# tries: to write
# breach: it is written
# expect: ok
# output: HELD
# held-by: landlock
print("HELD")
"""


def test_every_group_has_attacks_and_there_are_enough() -> None:
    attacks = [program for program in PROGRAMS if program.group != "benign"]
    assert {program.group for program in PROGRAMS} == set(GROUPS)
    assert len(attacks) >= 90
    assert len(PROGRAMS) - len(attacks) >= 15
    assert sum(bool(program.variants) for program in attacks) >= 50


def test_the_link_shows_the_programs_of_the_package() -> None:
    link = Path(__file__).with_name("programs")
    assert link.resolve() == attack_programs.FOLDER.resolve()


def test_what_was_expected_first_was_written() -> None:
    """`expected.txt` came before the attacks; those on the servers are tests of the servers."""
    lines = Path(__file__).with_name("expected.txt").read_text().splitlines()
    expected = [line.partition(" | ")[0] for line in lines if line and line[0] != "#"]
    tests = Path(__file__).parents[2]
    files = tests.glob("**/test_hostile_clients.py")
    written = {program.name for program in PROGRAMS}
    written |= set(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in files)))
    assert len(expected) >= 30 and set(expected) <= written


def test_no_two_programs_are_alike() -> None:
    shapes = [tuple(map(shape_of, program.parts)) for program in PROGRAMS]
    assert len(set(shapes)) == len(shapes)
    tries = [program.tries for program in PROGRAMS]
    assert len(set(tries)) == len(tries)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_an_attack_names_the_paths_that_it_tries(program: Program) -> None:
    """No folder of the machine can be listed: a pattern there finds nothing, and so tries nothing."""
    assert not any(re.search(r"^\s*(import|from) glob\b", part.code, re.M) for part in program.parts)


def is_judged_by_more(part: Part) -> bool:
    return bool(part.forbid or part.no_value or part.fetch or part.displays)


def shape_of(part: Part) -> str:
    return part.code if part.flavour == "bash" else ast.dump(ast.parse(part.code))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_says_what_it_got(program: Program) -> None:
    """An attack that ends well must be able to print BREACH, or it could not fail."""
    code = "\n".join(part.code for part in program.parts)
    ends_well = any("ok" in part.expect for part in program.parts)
    judged_otherwise = program.compare or any(map(is_judged_by_more, program.parts))
    if program.group == "benign":
        assert "BREACH" not in code
    elif program.parts[0].kind == "cell" or not ends_well or judged_otherwise:
        assert program.held_by
    else:
        assert "BREACH" in code or program.name in JUDGED_BY_THEIR_OUTPUT


JUDGED_BY_THEIR_OUTPUT = frozenset(
    (
        *("invalid_utf8", "cut_inside_a_character", "control_characters", "marker_of_truncation"),
        *("flush_raises", "reserved_exit_codes", "stopped_by_itself", "question_flood"),
        *("audit_hook_raises", "streams_made_nonblocking"),
        *("become_fork_server", "keep_thread"),
        "folders_without_bottom",
        *("cleanup_odd_names", "cleanup_locked_folder", "cleanup_follows_link", "cleanup_while_running"),
        "question_of_the_dying",
        *("lock_stops_others", "bash_orphans", "bash_own_group", "bash_daemons", "bash_other_name"),
        "bash_process_substitution",
        *("maps_split", "await_ignores_its_end", "timer_storm", "output_byte_by_byte", "display_replaced"),
    )
)


def program_of(text: str = SIMPLE) -> Program:
    return parse("simple", text)


def result(text: str = "HELD\n", status: str = "ok", *, truncated: bool = False) -> PartResult:
    return PartResult(status=status, text=text, stdout=text, truncated=truncated)


def test_what_is_expected_is_no_problem() -> None:
    assert judge(program_of(), [result()]) == []


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (result(status="error"), "status error"),
        (result(status="hung"), "status hung"),
        (result("nothing\n"), "does not match 'HELD'"),
        (result("HELD\nBREACH: it is\n"), "breach"),
        (result("HELD\nModuleNotFoundError: No module named 'x'\n"), "the attack did not run"),
        (result("HELD\nNameError: name 'x' is not defined\n"), "the attack did not run"),
        (result("HELD: serve: TypeError\n"), "the attack did not run"),
    ],
)
def test_anything_else_is_one(seen: PartResult, problem: str) -> None:
    assert any(problem in found for found in judge(program_of(), [seen]))


@pytest.mark.parametrize(
    ("field", "seen", "problem"),
    [
        ("forbid: FORGED", result("HELD FORGED"), "matches 'FORGED'"),
        ("truncated: no", result(truncated=True), "marked as truncated"),
        ("value: none", PartResult(status="ok", text="HELD", value="1"), "a value appeared"),
    ],
)
def test_fields_of_a_part_are_judged(field: str, seen: PartResult, problem: str) -> None:
    program = program_of(SIMPLE.replace("# held-by", f"# {field}\n# held-by"))
    assert any(problem in found for found in judge(program, [seen]))


def test_two_calls_are_compared() -> None:
    text = SIMPLE.replace("# held-by", "# compare: differ\n# held-by")
    program = program_of(text + "# %% call\n# expect: ok\n# output: HELD\nprint('HELD')\n")
    assert judge(program, [result("HELD 1"), result("HELD 2")]) == []
    assert judge(program, [result("HELD 1"), result("HELD 1")]) != []
    assert judge(program, [result("HELD 1 2"), result("HELD 1 3")]) != [], "one of two is the same"
    assert judge(program, [result("HELD"), result("HELD")]) != [], "nothing was drawn"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("# group: files\n", "", "'group' is missing"),
        ("# breach: it is written\n", "", "'breach' is missing"),
        ("# expect: ok\n", "", "'expect' is missing"),
        ("group: files", "group: garden", "group 'garden'"),
        ("expect: ok", "expect: fine", "expect is ['fine']"),
        ("# output: HELD", "# outputs: HELD", "unknown field 'outputs'"),
        ('print("HELD")\n', 'print("HELD")\n# %% chapter\n', "kind of part 'chapter'"),
    ],
)
def test_a_mistake_in_a_file_is_named(before: str, after: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        program_of(SIMPLE.replace(before, after))


def test_variants_name_layers_limits_and_facts() -> None:
    fields = "# breaches-without: seccomp+landlock when root\n# loosened: wall_s=1.5 files=9 when scratch\n"
    program = program_of(fields + SIMPLE)
    without, loosened = program.variants
    assert (without.without, without.needs, without.label) == ({"seccomp", "landlock"}, {"root"}, "landlock+seccomp")
    assert (dict(loosened.limits), loosened.needs) == ({"wall_s": 1.5, "files": 9}, {"scratch"})
    limits = attack.make_limits(program.parts, loosened.limits)
    assert (limits.files, limits.wall_s) == (9, 1.5)


async def test_a_pool_is_warm_when_its_own_processes_are_alone_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look was held against no process at all: every suite began with waiting for half a minute."""
    looks = iter([{1: 3, 9: 2}, {1: 3, 9: 2}, {1: 4}, {1: 3}, {1: 3}])
    monkeypatch.setattr(attack, "census", lambda: next(looks))
    await attack.wait_until_idle([1, 2], settle_s=PATIENCE_S)
    assert list(looks) == []


def test_only_what_is_to_be_late_has_the_usual_time() -> None:
    """On a busy machine a program that does much was taken for one that never ends."""
    late = SIMPLE.replace("# expect: ok", "# expect: ok timeout")
    assert late != SIMPLE
    assert attack.make_limits(program_of().parts, {}).wall_s == attack.UNTIMED_S
    assert attack.make_limits(program_of(late).parts, {}) == Limits()
    assert attack.make_limits(program_of().parts, {}, attack.THROUGH_S).wall_s == attack.THROUGH_S
