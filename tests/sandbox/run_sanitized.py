"""Run tests of the sandbox with what was built with sanitizers.

    python tests/sandbox/run_sanitized.py build/sanitize [pytest arguments]

Built for addresses and undefined behaviour: the supervisor, and the native module in the pool's process and
in every zygote and child. The package is laid out anew below the build directory, with links to its Python
files, so that the module that is installed stays as it is. Built for threads: the supervisor alone. A finding
aborts the process that has it, which fails the test. A pool replaces a supervisor that is gone, so its
standard error is searched for races as well.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = ("pool", "batch", "recovery", "session", "hostile_sessions", "scratch", "wire", "zygote", "bash")

OF_THREADS = ("pool", "batch", "session", "hostile_sessions", "scratch", "bash", "tenants", "call_output")
"""Those in which the supervisor's threads work beside its loop: long answers, files, displays, removal."""

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
    links |= {sandbox / path.name: path for path in (ROOT / "sandbox").iterdir() if path.name[:7] != "_native"}
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


def of_addresses(build: Path) -> dict[str, str]:
    environment = {**OPTIONS, "LD_PRELOAD": libraries(), "PYTHONPATH": str(lay_out(build))}
    return {**environment, "ROCSTAR_ZYGOTE_ENVIRONMENT": json.dumps(environment)}


def of_threads() -> dict[str, str]:
    """The supervisor's environment is that of its zygotes."""
    return {"ROCSTAR_ZYGOTE_ENVIRONMENT": json.dumps({"TSAN_OPTIONS": "halt_on_error=1:abort_on_error=1"})}


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    has_threads = "ROCSTAR_SANITIZE:STRING=thread\n" in (build / "CMakeCache.txt").read_text()
    own = of_threads() if has_threads else of_addresses(build)
    own["ROCSTAR_SUPERVISOR"] = str(build / "_supervisor")
    names = OF_THREADS if has_threads else TESTS
    tests = sys.argv[2:] or [str(ROOT / f"tests/sandbox/test_{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, *tests]
    if has_threads:
        command.append("--capture=sys")  # its standard error comes here
    done = subprocess.run(
        command, env={**os.environ, **own}, cwd=ROOT, check=False, stderr=subprocess.PIPE, errors="replace"
    )
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode or int("ThreadSanitizer" in done.stderr)


if __name__ == "__main__":
    sys.exit(main())
