"""Inference behind one protocol (`base.Inference`): the embedded engine now, servers later."""
