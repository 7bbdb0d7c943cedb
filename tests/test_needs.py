"""The line about skipped tests, and which tests see a GPU."""

from pathlib import Path

import pytest

from .needs import hide_gpus, left_out, modules


def test_skipped_tests_are_counted_by_reason() -> None:
    redis = "needs redis-server: apt-get install redis-server"
    assert left_out([*[redis] * 3, "needs a GPU: a machine with one", "malloc is\n not ours"]) == (
        "left out: 3 tests that need redis-server: apt-get install redis-server; "
        "1 test that needs a GPU: a machine with one; 1 test: malloc is not ours"
    )
    assert left_out([]) == ""


@pytest.mark.parametrize(
    ("selected", "has_gpu", "visible"),
    [("gpu", True, "0"), ("", True, "-1"), ("not slow", True, "-1"), ("", False, "0")],
)
def test_only_tests_with_the_marker_see_a_gpu(
    selected: str, has_gpu: bool, visible: str, tmp_path: Path
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    hide_gpus(selected, environ, [tmp_path if has_gpu else tmp_path / "none"])
    assert environ["CUDA_VISIBLE_DEVICES"] == visible


def test_a_missing_package_is_a_need() -> None:
    with pytest.raises(pytest.skip.Exception, match="needs the package nowhere_to_be: make setup"):
        modules("re", "nowhere_to_be.found")
