"""What serves the policy and the tools during a run: engines, servers, nodes, weights on their way."""
