"""A client that only calls: the floor of an orchestrator's processor time in Python.

    python -m benchmarks.scheduler.bare_calls URL --calls N --pause S

aiohttp gets URL N times, unsigned, over one connection, and reads each answer; it prints the
processor time of a call in milliseconds, pauses and loop included.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import aiohttp

WARM_UP = 50


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="between two calls, seconds")
    options = parser.parse_args()
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        await _calls(session, options.url, WARM_UP, 0.0)
        before_s = time.process_time()
        await _calls(session, options.url, options.calls, options.pause)
        spent_s = time.process_time() - before_s
    print(spent_s * 1000 / options.calls)


async def _calls(session: aiohttp.ClientSession, url: str, count: int, pause_s: float) -> None:
    for _ in range(count):
        async with session.get(url) as answer:
            await answer.read()
        await asyncio.sleep(pause_s)


if __name__ == "__main__":
    asyncio.run(main())
