"""The rollout engine: one asyncio program that turns tasks into trajectories."""

from rocstar.engine.passive_threads import wait_asleep

wait_asleep()  # before any module of ours loads torch
