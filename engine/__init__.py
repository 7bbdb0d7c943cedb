"""The rollout engine: one asyncio program that turns tasks into trajectories."""
