"""The check of one NVIDIA card, as a program: `python -m remote_gpu.worker.cards.check UUID`.

It opens a context, and writes, reads and compares memory, which takes a copy engine and a kernel of
the driver. It prints one JSON object: `{"context_bytes": n}`, the memory of the card that one
context takes, or `{"error": reason}`. Drivers hang and end their process: gpud limits its time.

The memory of a context is measured with a second process that opens one: the driver reports the
card's free memory to a process with a context only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

_BYTES = 1 << 20
_PATTERN = 0xA5
#: The argument of the second process.
_HOLD = "--hold"


class _CheckError(Exception):
    """The card does not work; the text has the reason."""


def main() -> None:
    """Check a card, or hold a context until stdin ends."""
    arguments = sys.argv[1:]
    os.environ["CUDA_VISIBLE_DEVICES"] = arguments[-1]
    try:
        _open()
        if _HOLD in arguments:
            _print({})
            sys.stdin.read()
            return
        _compare()
        found: dict[str, object] = {"context_bytes": _context_bytes(arguments[-1])}
    except (_CheckError, RuntimeError) as error:  # RuntimeError: there is no libcuda.so.1
        found = {"error": str(error)}
    _print(found)


def _open() -> None:
    _call(driver.cuInit, 0)
    context = _call(driver.cuDevicePrimaryCtxRetain, _call(driver.cuDeviceGet, 0))
    _call(driver.cuCtxSetCurrent, context)


def _compare() -> None:
    stream = _call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    read, memory = bytearray(_BYTES), _call(driver.cuMemAlloc, _BYTES)
    for value in (_PATTERN, 0):  # the last one clears it
        _call(driver.cuMemsetD8Async, memory, value, _BYTES, stream)
        _call(driver.cuMemcpyDtoHAsync, read, memory, _BYTES, stream)
        _call(driver.cuStreamSynchronize, stream)
        if read.count(value) != _BYTES:
            wrong = _BYTES - read.count(value)
            raise _CheckError(f"{wrong} of {_BYTES} bytes written to the card are read differently")
    _call(driver.cuMemFree, memory)


def _context_bytes(device: str) -> int:
    """The memory that a second context takes; 0 when it cannot be opened or memory is freed
    meanwhile."""
    before, _ = _call(driver.cuMemGetInfo)
    with subprocess.Popen(
        [sys.executable, "-m", "remote_gpu.worker.cards.check", _HOLD, device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None, "a pipe"
        if other.stdout.readline().strip() != b"{}":
            return 0
        after, _ = _call(driver.cuMemGetInfo)
    return max(0, int(before) - int(after))


def _call(function: Callable[..., Any], *args: Any) -> Any:
    result, *values = function(*args)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise _CheckError(f"{function.__name__} returned {result.name}")
    return values[0] if len(values) == 1 else values


def _print(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
