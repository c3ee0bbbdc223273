"""A script, `model_memory.py ONES LARGE`: memory of models, and runs without enough of it.

In a process of its own: only there is nothing left over that an allocation could be taken from.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from operations.inference.model import Model
from remote_gpu.wire.errors import OpCode, OpFailed

MIB = 1 << 20


def held_bytes() -> int:
    """Private memory, as the kernel's limit counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def fails_with(more_bytes: int, act: Callable[[], object]) -> str:
    """The code that `act` fails with, "" for none, where so much more may be held: as in a
    worker."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held_bytes() + more_bytes, limits[1]))
    try:
        act()
    except OpFailed as failed:
        return failed.code
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    return ""


def check_run(ones: bytes) -> None:
    """What a run needed is back after it; one that fails leaves nothing in the way of others."""
    model = Model(ones)

    def run(size: int) -> None:
        assert model.run({"s": np.array([size // 4], np.int64)}, ["y"])[0].tolist() == [1]

    run(4)
    before = held_bytes()
    run(100 * MIB)
    assert held_bytes() < before + 50 * MIB, "kept, it could not be lent to anything else"
    assert fails_with(60 * MIB, lambda: run(100 * MIB)) == OpCode.ENOMEM
    assert fails_with(60 * MIB, lambda: run(50 * MIB)) == ""


def check_load(large: bytes) -> None:
    """One that does not fit is out of memory; one that is gone holds none, at once."""
    assert fails_with(len(large) * 3 // 2, lambda: Model(large)) == OpCode.ENOMEM
    before = held_bytes()
    loaded = [Model(large)]
    assert held_bytes() >= before + len(large)
    loaded.clear()
    assert held_bytes() < before + len(large) // 2


if __name__ == "__main__":
    check_run(Path(sys.argv[1]).read_bytes())
    check_load(Path(sys.argv[2]).read_bytes())
