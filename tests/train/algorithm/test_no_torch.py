"""Only the loss needs tensors: a rollout process can use the rest without paying for torch."""

import subprocess
import sys

import pytest

from ...patience import PATIENCE_S


@pytest.mark.parametrize("module", ["advantages", "aggregate", "roc"])
def test_module_imports_without_torch(module: str) -> None:
    code = f"import sys, rocstar.train.algorithm.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=PATIENCE_S)
