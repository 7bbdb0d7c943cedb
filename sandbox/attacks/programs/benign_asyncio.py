# group: benign
# tries: nothing bad: tasks, timeouts and a thread in an event loop
# expect: ok
# output: \[0, 1, 2, 6\]
import asyncio


async def wait(number: int) -> int:
    await asyncio.sleep(number / 1000)
    return number


async def main() -> None:
    async with asyncio.timeout(60):
        print(await asyncio.gather(*map(wait, range(3)), asyncio.to_thread(sum, [1, 2, 3])))


asyncio.run(main())
