"""The operations of other benchmarks in this process, without a host.

A program of its own, because libraries fix their number of threads by the cores that a process may
use when they are loaded. It reads lines of JSON and answers each with a line: median seconds.

    python -m benchmarks.remote_gpu.alone CORE
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def matrices(n: int) -> list[memoryview]:
    """Two n×n matrices of seeded numbers in 0…1, in written memory (not shared zero pages)."""
    import numpy as np  # not before this process has its core

    drawn = np.random.default_rng(n)
    return [memoryview(bytearray(drawn.random((n, n), np.float32).data)) for _ in range(2)]


def inputs(sizes: Sequence[int]) -> list[bytearray]:
    """Seeded bytes of these lengths, one buffer for each."""
    return [bytearray(random.Random(size).randbytes(size)) for size in sizes]


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    from benchmarks.measure import median_s  # and all that it loads
    from remote_gpu.client import Local, Operations
    from remote_gpu.worker.operation import Context
    from remote_gpu.worker.registry import load_registry

    registry, context = load_registry(["sgemm", "sgemm_kernels"]), Context()
    plain = load_registry(["aes_cbc", "burn"])
    registry.prepare(context)
    there = [one["implementation"].split()[0] for one in registry.described("cpu")]
    print(json.dumps(there), flush=True)
    operations: Operations | None = None
    model: Any = None
    call: Any
    for line in sys.stdin:
        asked = json.loads(line)
        if "operation" in asked:
            operation = plain.find(asked["operation"], "cpu", None)
            given = [memoryview(one) for one in inputs(asked["bytes"])]
            call = functools.partial(operation.run, context, asked["args"], given)
        elif "n" in asked:
            n, wanted = asked["n"], asked["implementation"]
            args = {"m": n, "n": n, "k": n}
            operation = registry.find("sgemm", "cpu", wanted)
            call = functools.partial(operation.run, context, args, matrices(n))
        else:
            if operations is None:
                operations = Operations(Local())
                model = operations.resource("model", asked["model"])
            image = Path(asked["image"]).read_bytes()
            call = functools.partial(operations.run, "image_classification", image, model=model)
        print(median_s(call, asked["count"]), flush=True)


if __name__ == "__main__":
    main()
