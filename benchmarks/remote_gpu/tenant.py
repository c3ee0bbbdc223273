"""One tenant of `benchmarks.remote_gpu.sharing`: small matrix products in a closed loop.

Two lanes, a thread each: while one call computes, the next one waits in the worker, so the device
does not idle between the calls of a tenant. The matrices stay on the device. The program works from
a moment of the monotonic clock until another one, and prints how many products it had done by then.

    python -m benchmarks.remote_gpu.tenant --start S --end S [--side N]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from remote_gpu.client import connect

N = 160  #: of an n × n × n product, unless given: about a millisecond on one core
LANES = 2


def products(start_s: float, end_s: float, ready: threading.Barrier, n: int = N) -> int:
    """The number of products that one lane has done by `end_s`."""
    done = 0
    with connect() as device:
        matrix, result = device.buffer(4 * n * n), device.buffer(4 * n * n)
        device.op("sgemm", matrix, matrix, out=[result], m=n, n=n, k=n)
        ready.wait()
        time.sleep(max(0.0, start_s - time.monotonic()))
        while time.monotonic() < end_s:
            device.op("sgemm", matrix, matrix, out=[result], m=n, n=n, k=n)
            done += 1
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=float, required=True)
    parser.add_argument("--end", type=float, required=True)
    parser.add_argument("--side", type=int, default=N, help="of the matrices")
    options = parser.parse_args()
    ready = threading.Barrier(LANES)
    with ThreadPoolExecutor(LANES) as lanes:
        window = (options.start, options.end, ready, options.side)
        runs = [lanes.submit(products, *window) for _ in range(LANES)]
        done = sum(run.result() for run in runs)
    print(json.dumps({"done": done}))


if __name__ == "__main__":
    main()
