"""One tenant of `benchmarks.remote_gpu.sharing`: small matrix products, one after the other.

It opens a lane on the session in its environment, says so by a line, works from a moment of the
monotonic clock until another one or until it has done its share, and prints its counts.

    python -m benchmarks.remote_gpu.tenant --start S [--end S] [--count N]
"""

from __future__ import annotations

import argparse
import json
import time

from remote_gpu.client import connect

N = 160  #: of an n × n × n product: about a millisecond on one core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=float, required=True)
    parser.add_argument("--end", type=float, default=float("inf"))
    parser.add_argument("--count", type=int)
    options = parser.parse_args()
    matrix = bytes(4 * N * N)
    result = bytearray(4 * N * N)
    done = 0
    with connect() as device:
        device.op("sgemm", matrix, matrix, out=[result], m=N, n=N, k=N)
        time.sleep(max(0.0, options.start - time.monotonic()))
        while time.monotonic() < options.end and done != options.count:
            device.op("sgemm", matrix, matrix, out=[result], m=N, n=N, k=N)
            done += 1
    print(json.dumps({"done": done, "finished_s": time.monotonic()}))


if __name__ == "__main__":
    main()
