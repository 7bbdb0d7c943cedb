"""Builds rocstar: Python from engine/ kernels/ sandbox/ train/, the native modules from csrc/ with CMake."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
FOLDERS = ("engine", "kernels", "sandbox", "train")
COMPILER_BYTES = 3 << 29
"""Memory of one compiler process, with room."""
MEMORY = Path("/proc/meminfo")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Of a container, as it sees its own; a number of bytes, or "max"."""


class CMakeBuild(build_ext):
    """Builds the extensions with CMake; the build tree under build/ makes a second run short."""

    def build_extension(self, ext: Extension) -> None:
        import pybind11

        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        tag = f"{sys.implementation.cache_tag}-{self.plat_name}"
        build = ROOT / "build" / f"cmake-{tag}"
        configure = [
            *(cmake(), "-S", str(ROOT), "-B", str(build)),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DROCSTAR_BUILD_PYTHON=ON",
            "-DROCSTAR_BUILD_TESTS=OFF",
            # A compiler that is new to the project may warn of more: that must not fail a user's build.
            f"-DROCSTAR_WERROR={os.environ.get('ROCSTAR_WERROR', 'OFF')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        ]
        if ninja := shutil.which("ninja"):
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        if subprocess.run(configure, check=False).returncode != 0:
            # The tree was made for another checkout, or by tools that are gone as after an isolated build.
            shutil.rmtree(build)
            subprocess.run(configure, check=True)
        subprocess.run([cmake(), "--build", str(build), "--parallel", str(jobs())], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a running zygote has it mapped: never write into the old file
        module = ext.name.rpartition(".")[2]
        shutil.copy2(next(build.glob(f"{module}.*.so")), target)
        if module != "_native":
            return
        # An editable install takes only the extension itself out of the folder that it is built into.
        folders = [target.parent, *([ROOT / "sandbox"] if getattr(self, "editable_mode", False) else [])]
        for folder in folders:
            for name in ("_supervisor", "_places.so"):
                (folder / name).unlink(missing_ok=True)
                shutil.copy2(build / name, folder / name)


def jobs() -> int:
    """Return the number of compilers at a time: CMAKE_BUILD_PARALLEL_LEVEL, or what CPUs and memory allow."""
    level = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "")
    if level.isdecimal() and int(level) > 0:
        return int(level)
    available = int(MEMORY.read_text().partition("MemAvailable:")[2].split()[0]) << 10
    if MEMORY_LIMIT.exists() and (limit := MEMORY_LIMIT.read_text().strip()).isdecimal():
        available = min(available, int(limit))
    return max(1, min(len(os.sched_getaffinity(0)), available // COMPILER_BYTES))


def cmake() -> str:
    found = shutil.which("cmake")
    if found is None:
        raise SystemExit("cmake is not on PATH; install it with `apt-get install cmake` or `pip install cmake`")
    return found


setup(
    packages=[
        f"rocstar.{name}"
        for folder in FOLDERS
        for name in (folder, *(f"{folder}.{sub}" for sub in find_namespace_packages(folder)))
        if list((ROOT / name.replace(".", "/")).glob("*.py"))
    ],
    package_dir={f"rocstar.{folder}": folder for folder in FOLDERS},
    package_data={
        "": ["py.typed"],
        "rocstar.engine.charts": ["drawing.css"],
        "rocstar.engine.chat": ["readback.toml", "templates/*"],
        "rocstar.engine.inference.embedded": ["*.pyi"],
        "rocstar.engine.serve": ["routes.toml", "schemas.json"],
        "rocstar.engine.sim": ["*.toml"],
        "rocstar.engine.tools": ["python.toml"],
        "rocstar.sandbox": ["*.pyi", "verbs.toml"],
        "rocstar.sandbox.attacks.pairs": ["*.txt"],
        "rocstar.sandbox.attacks.programs": ["*.sh"],
        "rocstar.sandbox.doctor": ["layers.toml"],
        "rocstar.sandbox.fabric": ["*.lua"],
        "rocstar.sandbox.http": ["listening.toml"],
        "rocstar.sandbox.service": ["routes.toml"],
        "rocstar.train.learner": ["models.toml"],
        "rocstar.train.learner.export": ["*.jinja"],
        "rocstar.train": ["recipes/*.toml", "recipes/data/*.toml"],
        "rocstar.train.cli": ["verbs.toml"],
        "rocstar.train.data": ["*.sql", "*.toml"],
        "rocstar.train.evaluation.benchmarks": ["*.toml"],
        "rocstar.train.evaluation.benchmarks.bfcl": ["tables.toml"],
        "rocstar.train.evaluation.benchmarks.ifeval": ["*.toml"],
        "rocstar.train.plan": ["*.toml"],
        "rocstar.train.recipe": ["terms.toml"],
        "rocstar.train.record": ["*.toml"],
        "rocstar.train.reading.analysis": ["analysis_page.toml"],
        "rocstar.train.reading.diagnosis": ["alarms.toml"],
        "rocstar.train.tasks": ["*.toml"],
        "rocstar.train.reading.view": ["plots.toml", "static/*"],
    },
    ext_modules=[
        Extension(name, sources=[])
        for name in ("rocstar.sandbox._native", "rocstar.engine.inference.embedded._decode")
    ],
    cmdclass={"build_ext": CMakeBuild},
)
