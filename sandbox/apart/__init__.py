"""Decoding of large bodies in other processes, for every server."""
