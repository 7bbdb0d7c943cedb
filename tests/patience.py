"""How long a test waits for what must happen."""

import os

PATIENCE_VARIABLE = "ROCSTAR_TEST_PATIENCE_S"

PATIENCE_S = float(os.environ.get(PATIENCE_VARIABLE, "300"))
"""After this a test that waits for something has failed: it will not come any more. A machine that does many
other things may take a minute over what takes it a second alone, and waiting costs nothing where
all is well (`test_patience.py`)."""
