"""Serve the policy and the tools during a run: engines, servers, nodes, transfer of weights."""
