"""Runs tests of the sandbox with what was built with sanitizers: the supervisor, and the native module in the
pool's process and in every zygote and child.

    python tests/sandbox/run_sanitized.py build/sanitize [pytest arguments]

The package is laid out anew below the build directory, with links to its Python files, so that the module
that is installed stays as it is. A finding aborts the process that has it, which fails the test.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = ("pool", "batch", "recovery", "session", "hostile_sessions", "scratch", "wire", "zygote", "bash")

# Whose point is something else and which take long: a sanitized process starts slowly.
LEFT_OUT = "not flavours and not each_stage and not each_supervisor"

OPTIONS = {
    # Python never frees all it has, a program that asks for too much is to get a MemoryError, and one that
    # crashes is to die of its own signal.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:handle_segv=0",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
}


def lay_out(build: Path) -> Path:
    """A folder to import `rocstar` from: `sandbox` with the sanitized module, the rest as it is."""
    package = build / "python" / "rocstar"
    sandbox = package / "sandbox"
    sandbox.mkdir(parents=True, exist_ok=True)
    links = {package / name: ROOT / name for name in ("engine", "kernels", "train")}
    links |= {
        sandbox / path.name: path for path in (ROOT / "sandbox").iterdir() if path.name[:7] != "_native"
    }
    links |= {sandbox / path.name: path for path in build.glob("_native*.so")}
    links[sandbox / "_supervisor"] = build / "_supervisor"
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return package.parent


def libraries() -> str:
    """To be loaded before all else: the runtime must come first, and needs C++'s own to wrap exceptions."""
    names = ("libasan.so", "libstdc++.so")
    found = [
        subprocess.run(["c++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
        for name in names
    ]
    return ":".join(os.path.realpath(path.stdout.strip()) for path in found)


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    tests = sys.argv[2:] or [str(ROOT / f"tests/sandbox/test_{name}.py") for name in TESTS]
    environment = {**OPTIONS, "LD_PRELOAD": libraries(), "PYTHONPATH": str(lay_out(build))}
    own = {
        **environment,
        "ROCSTAR_SUPERVISOR": str(build / "_supervisor"),
        "ROCSTAR_ZYGOTE_ENVIRONMENT": json.dumps(environment),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, *tests]
    return subprocess.run(command, env={**os.environ, **own}, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
