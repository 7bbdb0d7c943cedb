"""What the script counts, in a wheel made up for it."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from wheel_size import main

FILES = {
    "rocstar/engine/loop.py": "a\nb\nc\n",
    "rocstar/engine/inference/fake_server.py": "a\nb\n",
    "rocstar/engine/testing.py": "a\n",
    "rocstar/sandbox/attacks/kill.py": "a\n",
    "rocstar/sandbox/_supervisor": "binary",
    "rocstar-1.dist-info/METADATA": (
        "Name: rocstar\nRequires-Dist: pytest>=1\n"
        'Requires-Dist: torch; extra == "train"\n\nRequires-Dist: x\n'
    ),
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "rocstar-1.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in FILES.items():
            file.writestr(name, text)
    return path


def test_it_counts_by_package_and_names_the_stand_ins(
    wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = wheel.with_suffix(".json")
    assert main([str(wheel), "--commit", "abc", "--out", str(out)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads(out.read_text())
    assert (facts["commit"], facts["files"], facts["python_files"], facts["python_lines"]) == ("abc", 6, 4, 7)
    assert facts["python_lines_without_attack_programs"] == 6
    assert facts["lines_by_package"] == {"engine": 4, "engine.inference": 2, "sandbox.attacks": 1}
    assert facts["stand_ins"] == {"engine/inference/fake_server.py": 2, "engine/testing.py": 1}
    assert facts["installed_bytes"] == sum(map(len, FILES.values()))
    assert facts["dependencies"] == ["pytest>=1"] and facts["dependencies_mb"] > 1


def test_a_dependency_that_is_not_here_has_no_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rocstar-1.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("rocstar-1.dist-info/METADATA", "Requires-Dist: no-such-package-of-anybody\n\n")
    assert main([str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["dependencies_mb"] is None
