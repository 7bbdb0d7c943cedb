"""A Python that every user may read, with the sandbox in it: what slot users and ordinary users need.

The Python that runs the tests may lie where only its owner can go. Then the machine's own Python of the same
version gets a virtual environment in a public place, with copies of the package and of numpy and sympy.
"""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import rocstar.sandbox

LIBRARIES = ("numpy", "numpy.libs", "sympy", "mpmath")


@contextmanager
def world_readable_python() -> Iterator[Path | None]:
    """The interpreter of a fresh environment, None when this machine has no Python for it."""
    base = find_python()
    if base is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rocstar-python-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_packages(make_environment(folder / "venv", base))
        yield folder / "venv" / "bin" / "python"


def copy_sandbox(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(rocstar.sandbox.__file__).parent, target / "rocstar" / "sandbox", ignore=ignore)


def copy_packages(target: Path) -> None:
    copy_sandbox(target)
    numpy = find_spec("numpy")
    if numpy is None or numpy.origin is None:
        return
    for library in LIBRARIES:
        source = Path(numpy.origin).parent.parent / library
        if source.is_dir():
            shutil.copytree(source, target / library, ignore=shutil.ignore_patterns("__pycache__"))


@functools.cache
def find_python() -> str | None:
    """A world-readable interpreter that can load the native module built for this one."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = os.path.join(sys.base_prefix, "bin", version)
    for candidate in (own, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        if not os.path.exists(candidate) or not is_public(os.path.realpath(candidate)):
            continue
        code = "import sysconfig, venv; print(sysconfig.get_config_var('EXT_SUFFIX'))"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip() == suffix:
            return candidate
    return None


def is_public(path: str) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in (Path(path), *Path(path).parents))


def make_environment(folder: Path, base: str | Path) -> Path:
    """Makes a virtual environment without pip. Returns its folder of packages."""
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    return next((folder / "lib").glob("python3*")) / "site-packages"
