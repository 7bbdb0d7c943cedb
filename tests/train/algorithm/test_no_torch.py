"""Only the loss needs tensors: a rollout process can use the rest without paying for torch."""

import subprocess
import sys

from ...patience import PATIENCE_S


def test_modules_import_without_torch() -> None:
    names = ", ".join(f"rocstar.train.algorithm.{name}" for name in ("advantages", "aggregate", "roc"))
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=PATIENCE_S)
