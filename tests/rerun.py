"""A pytest plugin, `-p tests.rerun`: run each failed test once more, alone, after all others.

If all of them pass, the run succeeds, and its last lines name them as flaky. No test runs again after an
error of collection, a crash of a test process, an interrupt, or more than MOST failures. Errors in the setup of a
file's tests count as one, and these tests run again together: they may share a fixture.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

MOST = 10
TIMEOUT_S = 900.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Run after the summary, in the process that has it: its result is the last line."""
    yield
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(config, "workerinput") or terminal is None:
        return
    # A crash is reported for a test in no phase of it; an error of collection is a CollectReport.
    reports = [report for kind in ("failed", "error") for report in terminal.stats.get(kind, [])]
    phases = {getattr(report, "when", "collect") for report in reports}
    causes: dict[str, dict[str, None]] = {}
    for report in reports:
        of_setup = getattr(report, "when", "") == "setup"
        causes.setdefault(report.nodeid.partition("::")[0] if of_setup else report.nodeid, {})[report.nodeid] = None
    was_stopped = session.exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop
    if was_stopped or not phases <= {"setup", "call", "teardown"} or not 0 < len(causes) <= MOST:
        return
    again = [test for tests in causes.values() if not passes([*tests], config) for test in tests]
    if not again:
        session.exitstatus = pytest.ExitCode.OK
    terminal.write_line("")
    for test in dict.fromkeys(test for tests in causes.values() for test in tests):
        words = "failed, and failed again alone" if test in again else "failed, then passed alone"
        terminal.write_line(f"{'failed' if test in again else 'flaky'}: {test} {words}", red=True)


def passes(tests: list[str], config: pytest.Config) -> bool:
    """Run tests in a new process; show its output if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"--rootdir={config.rootpath}"]
    if config.option.markexpr:
        command += ["-m", config.option.markexpr]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    try:
        subprocess.run(
            [*command, *tests],
            cwd=config.rootpath,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        print(f"\n{error.output}")
        return False
    except subprocess.TimeoutExpired:
        print(f"\n{' '.join(tests)} did not end within {TIMEOUT_S:.0f} s")
        return False
    return True
