"""Tools the policy may call."""
