"""How long a test waits for what must happen."""

PATIENCE_S = 120.0
"""After this a test that waits for something has failed: it will not come any more. A machine that does many
other things may take half a minute over what takes it a millisecond alone, and waiting costs nothing where
all is well (`test_patience.py`)."""
