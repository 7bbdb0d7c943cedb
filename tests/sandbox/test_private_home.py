"""The layout of a quickstart: a virtual environment below a home that only its owner may enter."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rocstar.sandbox.attacks.host import allows_user_namespace

from .. import needs
from ..patience import PATIENCE_S
from .attacks.world_readable import copy_sandbox, find_python, make_environment

LOOK = """
import json, os, sqlite3, tomllib
def readable(path):
    try: return bool(os.listdir(path))
    except OSError: return False
print(json.dumps({"uid": os.getuid(), "home": readable(%r), "secret": os.path.exists(%r)}))
"""
PROGRAM = """
import asyncio, json, sys
from rocstar.sandbox.child.user_flavours import read_flavours
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest

async def main():
    own = read_flavours(sys.argv[2]) if sys.argv[2:] else {}
    async with SandboxPool((*own, "stdlib"), declared=own) as pool:
        result = await pool.run(ExecRequest(code=sys.argv[1], flavour="own" if own else "stdlib"))
        print(json.dumps([result.isolation.split("+"), result.stdout, result.stderr]))

asyncio.run(main())
"""
"""Runs a program, in the flavour `own` if there is a file of flavours."""


def outcome_of(*command: str | Path, cwd: str | Path = "/", umask: int = -1) -> tuple[list[str], str, str]:
    """Layers, standard output and standard error of a program that PROGRAM runs."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=cwd, check=False, umask=umask
    )
    assert done.returncode == 0, done.stderr
    layers, stdout, stderr = json.loads(done.stdout)
    return layers, stdout, stderr


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=oct)
def test_programs_have_users_of_their_own_below_a_private_home(tmp_path: Path, umask: int) -> None:
    base = find_python()
    if os.geteuid() != 0 or base is None:
        needs.ROOT.skip()
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "secret").write_text("x")
    (home / "secret").chmod(0o644)
    venv = home / "project" / ".venv"
    packages = make_environment(venv, base)
    (packages / "rocstar.pth").write_text(f"{home / 'project' / 'house'}\n")
    copy_sandbox(home / "project" / "house")
    program = LOOK % (str(home), str(home / "secret"))
    layers, stdout, stderr = outcome_of(venv / "bin" / "python", "-c", PROGRAM, program, cwd=home, umask=umask)
    if "namespaces" not in layers:
        needs.ROOT.skip()
    assert "uid" in layers and not stderr
    seen = json.loads(stdout)
    assert seen["uid"] >= 100_000 and not seen["home"] and not seen["secret"]


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=["private", "open"])
def test_a_package_that_is_a_link_into_a_home_is_imported(tmp_path: Path, mode: int) -> None:
    """By the zygote and, of its later modules, by programs; what lies beside the package is nobody's."""
    base = find_python() or sys.executable
    home, venv = tmp_path / "home", tmp_path / "venv"
    linked = home / "linked"
    linked.mkdir(parents=True)
    (linked / "__init__.py").write_text("")
    (linked / "later.py").write_text("FOUND = 'found'\n")
    (home / "secret").write_text("x")
    packages = make_environment(venv, base)
    copy_sandbox(packages)
    (packages / "linked").symlink_to(linked)
    home.chmod(mode)
    program = f"from linked.later import FOUND\nprint(FOUND)\nopen({str(home / 'secret')!r})"
    layers, stdout, stderr = outcome_of(venv / "bin" / "python", "-c", PROGRAM, program)
    if "landlock" not in layers:
        needs.LANDLOCK.skip()
    assert stdout == "found\n" and ("PermissionError" in stderr or "FileNotFoundError" in stderr)


READS = """
import fonts
from pathlib import Path
print((Path(fonts.__file__).parent / "font.ttf").read_text(), __import__("later").FOUND)
def is_readable(path):
    try: return bool(open(path).read())
    except OSError: return False
print([is_readable(path) for path in %r])
"""


@pytest.mark.parametrize("own", [False, True], ids=["its own", "a declared flavour's"])
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=["private", "open"])
def test_an_environment_over_another_reads_both_and_no_working_copy(tmp_path: Path, mode: int, own: bool) -> None:
    """By a line of a .pth file, the usual way: a figure needs its fonts, which are files."""
    base = find_python() or sys.executable
    home = tmp_path / "home"
    site, below, above = (make_environment(home / name, base) for name in ("venv", "below", "above"))
    copy_sandbox(site)
    copy = home / "copy"
    (copy / "src").mkdir(parents=True)
    (copy / "src" / "token.txt").write_text("x")
    (below / "fonts").mkdir()
    (below / "fonts" / "__init__.py").write_text("")
    (below / "fonts" / "font.ttf").write_text("a font")
    (home / "later.py").write_text("FOUND = 'found'\n")
    (below / "later.py").symlink_to(home / "later.py")
    # Of `home` nothing is a folder of packages but those of interpreters.
    over = above if own else site
    lines = [os.path.relpath(below, over), str(copy / "src"), str(home), "", "# " + str(tmp_path)]
    (over / "over.pth").write_text("\n".join(lines))
    flavours = home / "flavours.toml"
    flavours.write_text('[flavour.own]\nimports = ["fonts"]\nenvironment = "above"\n')
    home.chmod(mode)
    program = READS % ([str(copy / "src" / "token.txt"), str(flavours)],)
    declared = [flavours] if own else []
    layers, stdout, stderr = outcome_of(home / "venv" / "bin" / "python", "-c", PROGRAM, program, *declared)
    if "landlock" not in layers:
        needs.LANDLOCK.skip()
    assert (stdout, stderr) == ("a font found\n[False, False]\n", "")


FEW_USERS = """
import ctypes, os, sys
ours, theirs = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).unshare(0x10000000)
    os.write(ours[1], b"x")
    os.read(theirs[0], 1)
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(ours[0], 1)
for kind in ("uid", "gid"):
    with open(f"/proc/{pid}/{kind}_map", "w") as file:
        file.write("0 0 1\\n1 200000 65536\\n")
os.write(theirs[1], b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("few", [False, True], ids=["as root", "as an ordinary user"])
def test_root_of_a_container_has_users_for_programs_and_namespaces(few: bool) -> None:
    """It may change users, and not mount but in a namespace of users, which needs all of its own. In a
    container that an ordinary user started there are 65,536."""
    base = find_python()
    if os.geteuid() != 0 or base is None:
        needs.ROOT.skip()
    needs.commands("setpriv")
    with tempfile.TemporaryDirectory(prefix="rocstar-container-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_sandbox(make_environment(folder / "venv", base))
        python = str(folder / "venv" / "bin" / "python")
        contained = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
        command = [*contained, python, "-c", PROGRAM, "import os\nprint(os.getuid())"]
        if few:
            command = [python, "-c", FEW_USERS, *command]
        layers, stdout, _ = outcome_of(*command)
    if "namespaces" not in layers and not allows_user_namespace():
        needs.ROOT.skip()
    assert "uid" in layers and "namespaces" in layers, layers
    assert 1 << 15 <= int(stdout) < 1 << 16 if few else int(stdout) >= 100_000


def test_root_that_may_not_look_into_others_bounds_a_shells_processes_all_the_same() -> None:
    """CAP_SYS_ADMIN alone, as a container may be given it: a /proc of one's own would show it nobody."""
    if os.geteuid() != 0:
        needs.ROOT.skip()
    needs.commands("setpriv")
    contained = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    attacks = [sys.executable, "-P", "-m", "rocstar.sandbox.attacks.run", "bash_memory_of_many"]
    done = subprocess.run([*contained, *attacks], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
