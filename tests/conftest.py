"""Settings of all tests: no model hub, no spinning threads, no deadline of Hypothesis; a line about skips."""

import atexit
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from .needs import GPU, GPU_NODES, PLANTED_HERE, SERVERS, SGLANG, is_set, left_out
from .warm_python import warm
from .warm_tests import ADDED, start

HERE = Path(__file__).parent
SERVER_VARIABLES = ["ROCSTAR_VLLM_PYTHON", "ROCSTAR_LLAMACPP_PYTHON"]
"""One of these is enough: the tests of each other server are skipped."""
FIRST = [
    *("sandbox/attacks/test_attacks.py", "kernels/test_aot.py", "train/reading/view/test_in_a_browser.py"),
    *("train/test_guides.py", "train/learner/test_ranks.py", "integration/", "kernels/test_interpreter.py"),
    *("train/test_wrong_input.py", "examples/", "sandbox/ordinary/", "sandbox/attacks/", "train/tasks/test_hostile"),
]
"""Files that take longest. One that a test process starts last would keep the others waiting."""

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Read when torch loads. Threads that spin while they wait take the cores from the other test processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A background job of a shell ignores SIGINT, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("rocstar", deadline=None, derandomize=True, max_examples=60)
# With a planted bug only the failure counts; finding the smallest example takes far longer.
settings.register_profile(
    "planted", settings.get_profile("rocstar"), phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False
)
settings.load_profile("planted" if is_set(PLANTED_HERE) else "rocstar")


ENDED: list[int] = []
"""Processes whose exit handlers have run: this one, and its forks."""
atexit.register(lambda: ENDED.append(os.getpid()))


def pytest_runtest_teardown() -> None:
    """Check that a test runs no exit handlers: those of torch remove operators that later tests need."""
    assert os.getpid() not in ENDED and atexit._ncallbacks() > 0, "the test ran or removed the exit handlers"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn garbage collection off while a failure is reported.

    The report parses source lines, and so does a collected task whose error was never retrieved. CPython 3.11
    fails when one parse runs within the other; pytest then stops with an INTERNALERROR.
    """
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that need external servers or a GPU, where there are none. Order those of a test process."""
    if hasattr(config, "workerinput"):
        places = [str(HERE / name) for name in FIRST]
        items.sort(key=lambda item: next((k for k, one in enumerate(places) if str(item.path).startswith(one)), 99))
    for folder, variables, need in (
        ("sglang", ["ROCSTAR_SGLANG_PYTHON"], SGLANG),
        ("servers", SERVER_VARIABLES, SERVERS),
    ):
        if not any(is_set(variable) for variable in variables):
            for item in items:
                if item.path.is_relative_to(HERE / folder):
                    item.add_marker(pytest.mark.skip(reason=need.reason))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch  # only if a test needs a device

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=GPU.reason))


def pytest_collection_finish() -> None:
    """Freeze the imported objects, so that garbage collection does not traverse all of torch."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the test processes from one that has imported all of their modules.

    Not on a machine with a GPU: collection initialises the driver, which does not survive a fork.
    """
    if any(node.exists() for node in GPU_NODES):
        warm()
        return
    python = start(config.invocation_params.args, config.invocation_params.dir)
    for spec in specs:
        spec.python = str(python)


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs from all tests but those of the marker `gpu`; in a fork, restore the path of collection.

    The other tests are of the CPU, and several ranks of one test would take the same GPU. torch on AMD GPUs
    reads the same variable.
    """
    if config.option.markexpr != "gpu" and any(node.exists() for node in GPU_NODES):
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    sys.path[:0] = ADDED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Print which tests were skipped, and how to run them."""
    yield
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminalreporter.stats.get("skipped", [])
    ]
    if line := left_out(reasons):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder with a path short enough for a Unix socket in it (107 bytes at most)."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)
