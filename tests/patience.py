"""How long a test waits for what must happen."""

PATIENCE_S = 300.0
"""After this a test that waits for something has failed: it will not come any more. A machine that does many
other things may take a minute over what takes it a second alone, and waiting costs nothing where
all is well (`test_patience.py`)."""
