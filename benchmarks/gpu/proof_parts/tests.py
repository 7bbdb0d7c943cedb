"""Tests: kernels, learner and engine with the device hidden ("cpu"), and all tests marked `gpu` ("gpu")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from report import ROOT

from .part import Part
from .results import Suite

FOLDERS = ("tests/kernels", "tests/train/learner", "tests/engine")
SELECTED = {"cpu": FOLDERS, "gpu": ("-m", "gpu", "tests")}
TOY_SELECTED = {"cpu": ("tests/kernels/test_rows.py",), "gpu": ("-m", "gpu", "tests/kernels")}
MOST_WORKERS = 12
TEST_S = 100
STOP_S = 20
"""pytest names what failed when it is interrupted; the rest of the time is for that."""
NO_TESTS = 5
"""Exit code of pytest where none is selected."""
KEPT = 60


def measure(part: Part) -> None:
    result: Suite = part.result
    report, selected = part.path(".xml"), (TOY_SELECTED if part.toy else SELECTED)[part.which]
    report.unlink(missing_ok=True)
    # Tests on the device share its memory: one process.
    workers = 0 if part.toy or part.which == "gpu" else min(MOST_WORKERS, max(1, (os.cpu_count() or 2) - 2))
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)),
        *(f"--timeout={TEST_S}", f"--junitxml={report}", *selected),
    ]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} if part.which == "cpu" else {}
    with part.path(".txt").open("w") as log:
        tests = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **hidden})
        try:
            result.exit_code = tests.wait(part.left() - STOP_S)
            result.is_cut_short = False
        except subprocess.TimeoutExpired:
            result.is_cut_short = True
            tests.send_signal(signal.SIGINT)
            result.exit_code = tests.wait(STOP_S - 3)
    if report.exists():
        count(report, result)
    if result.exit_code == NO_TESTS:
        result.passed = result.failed = result.skipped = 0
        result.failures = []
    part.save()


def count(report: Path, result: Suite) -> None:
    """Numbers and names of pytest's XML report."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    result.failed = len(failed)
    result.skipped = sum(case.find("skipped") is not None for case in cases)
    result.passed = len(cases) - result.failed - result.skipped
    result.failures = [f"{case.get('classname')}::{case.get('name')}" for case in failed][:KEPT]
