"""The request and answer formats of foreign agents. A dialect is one module without state and I/O."""
