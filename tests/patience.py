"""How long a test waits for what must happen."""

import os

PATIENCE_VARIABLE = "ROCSTAR_TEST_PATIENCE_S"

PATIENCE_S = float(os.environ.get(PATIENCE_VARIABLE, "300"))
"""A machine that does many other things may take a minute over what takes it a second alone, and a long
deadline costs nothing when the test passes (`test_test_sources.py`)."""
