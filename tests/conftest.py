"""What every test shares: no model hub, no spinning threads, no timed Hypothesis; what was left out."""

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

from .needs import GPU, GPU_NODES, PLANTED_HERE, SERVERS, SGLANG, hide_gpus, is_set, left_out
from .warm_python import warm
from .warm_tests import ADDED, started

HERE = Path(__file__).parent
SERVER_VARIABLES = ["ROCSTAR_VLLM_PYTHON", "ROCSTAR_LLAMACPP_PYTHON"]
"""One of these is enough: of the servers, those are left out whose interpreter is not named."""

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Read when torch loads. Threads that spin while they wait take the cores from the other test processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A job that a shell put into the background ignores it, and so would all that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("rocstar", deadline=None, derandomize=True, max_examples=60)
# Where a bug is planted that a test fails is all there is to know: the smallest example takes far longer.
settings.register_profile(
    "planted",
    settings.get_profile("rocstar"),
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
settings.load_profile("planted" if is_set(PLANTED_HERE) else "rocstar")


ENDED: list[int] = []
"""The processes whose exit handlers have run: ours, and who came out of a fork."""
atexit.register(lambda: ENDED.append(os.getpid()))


def pytest_runtest_teardown() -> None:
    """Exit handlers end what later tests of the process need: torch's take its operators away."""
    assert os.getpid() not in ENDED and atexit._ncallbacks() > 0, "it ran or took the process's exit handlers"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[None]:
    """Nothing is collected while a failure is told. To show its lines they are parsed, and a task whose
    error nobody has asked for parses some, too, when it is collected: CPython 3.11 cannot do one within the
    other, and instead of the failure there is an INTERNALERROR, with all that was not run yet."""
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what needs servers of others or a GPU, where there are none."""
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
    import torch  # only where a test asks for a device

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=GPU.reason))


def pytest_collection_finish() -> None:
    """Takes what was imported out of the collector's sight, which would go through all of torch each time."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Several test processes are forks of one that has imported all that they import.

    Not where a GPU is: collecting asks for it, and what its driver has set up does not live through a fork.
    """
    if any(node.exists() for node in GPU_NODES):
        warm()
        return
    python = started(config.invocation_params.args, config.invocation_params.dir)
    for spec in specs:
        spec.python = str(python)


def pytest_configure(config: pytest.Config) -> None:
    """GPUs are for the tests with their marker. In such a fork: what test files did to the path as they were
    imported."""
    hide_gpus(config.option.markexpr, os.environ)
    sys.path[:0] = ADDED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The line above pytest's last one: what did not run, and how to have it run."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    if line := left_out(reason_of(report) for report in skipped):
        terminalreporter.write_line(line, yellow=True)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, in the words of the skip."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a Unix socket, which has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)
