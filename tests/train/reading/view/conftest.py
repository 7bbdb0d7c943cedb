"""One run for the viewer's tests; nobody may change it."""

from pathlib import Path

import pytest

from .view_runs import make_view_run


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps as columns with an index."""
    return make_view_run(tmp_path_factory.mktemp("view") / "made")
