# mypy: ignore-errors
# group: cpu
# tries: a task that swallows its cancellation when the program ends
# breach: the program does not end
# expect: ok
# output: HELD: asked to stop
# held-by: a bound on what is left running
# limits: wall_s=3
import asyncio


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("HELD: asked to stop")


task = asyncio.create_task(stubborn())
await asyncio.sleep(0)
