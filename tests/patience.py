"""The deadline of a test's waits for events that must happen."""

import os

PATIENCE_VARIABLE = "ROCSTAR_TEST_PATIENCE_S"

PATIENCE_S = float(os.environ.get(PATIENCE_VARIABLE, "300"))
"""A busy machine may take a minute for a second's work; a long deadline costs nothing when the test passes
(`test_test_sources.py`)."""
