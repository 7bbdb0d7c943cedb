# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to leave an event loop running for the next cell
# breach: a task of it goes on there
# expect: ok
# output: HELD
# held-by: the loop ends with its cell
import asyncio

seen = []


async def tick():
    while True:
        seen.append(1)
        await asyncio.sleep(0)


task = asyncio.create_task(tick())
await asyncio.sleep(0.01)
print("HELD: left", len(seen) > 0)

# %% cell
# tries: to see it go on
# expect: ok
# output: HELD
before = len(seen)
await asyncio.sleep(0.05)
print("BREACH: it goes on" if len(seen) > before else "HELD: it has ended")
