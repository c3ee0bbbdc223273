"""Kinds of device whose drivers answer on this machine, found by a child process.

A library that imports proves nothing: pyopencl and cuda-bindings do without any driver. A driver
that is installed may fail, hang or end its process. So a child builds and runs a small kernel on
one device of each kind; this process loads no driver and starts no thread: it may be forked.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.memory.quota import Quota

#: Until a child's drivers must have answered: a first build of a kernel takes PoCL 0.5 s on an
#: idle core, and a card that wakes up some seconds. Whoever has not answered by then is not used.
_ANSWER_S = 30.0
_KERNEL = "__kernel void answer(__global int *x) { x[get_global_id(0)] = 42; }"
_ANSWER = b"\x2a\0\0\0"
_PRINTED = "answers: "  #: before a kind that answers; drivers print lines of their own


@functools.cache
def answering() -> frozenset[str]:
    """Of the kinds `cpu`, `opencl` and `cuda`: those that run kernels here.

    `opencl` is any device of OpenCL, so a CPU as well (`gpud --opencl all`). Asked once a process:
    a driver that is installed later is found by the next one.
    """
    if not any(importlib.util.find_spec(library) for library in ("pyopencl", "cuda")):
        return frozenset()
    with tempfile.TemporaryDirectory(prefix="orchgpu-drivers-") as folder:
        environment = {
            **os.environ,
            "POCL_CACHE_DIR": folder,
            "XDG_CACHE_HOME": folder,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        lines = _output_of([sys.executable, "-m", __name__], environment).splitlines()
    return frozenset(line.removeprefix(_PRINTED) for line in lines if line.startswith(_PRINTED))


def missing_on_cpu() -> str:
    """Why kernels do not run on this machine's CPU, for people."""
    linker = "" if shutil.which("ld") else "; PoCL links kernels with `ld` (Debian: binutils)"
    return f"no OpenCL driver for this machine's CPU answers{linker}"


def _output_of(command: list[str], environment: dict[str, str], limit_s: float = _ANSWER_S) -> str:
    """Up to its end, whatever the end was: what a driver answered before another failed counts."""
    try:
        ran = subprocess.run(
            command,
            check=False,
            timeout=limit_s,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as hung:
        return (hung.stdout or b"").decode(errors="replace")
    return ran.stdout.decode(errors="replace")


def main() -> None:
    """`python -m remote_gpu.worker.backends.drivers`: try each kind, print those that answer."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the spawner ignores it; a linker is waited for
    on_cpu = _opencl_answers("cpu")
    if on_cpu:
        _print("cpu")
    if on_cpu or _opencl_answers("opencl"):
        _print("opencl")
    if _cuda_answers():
        _print("cuda")


def _print(kind: str) -> None:
    """At once: the next driver may end this process."""
    sys.stdout.write(f"{_PRINTED}{kind}\n")
    sys.stdout.flush()


def _opencl_answers(kind: str) -> bool:
    if importlib.util.find_spec("pyopencl") is None:
        return False
    opencl = importlib.import_module("remote_gpu.worker.backends.opencl")
    try:
        backend = opencl.open_opencl(kind)
        memory = backend.allocate(Quota(), 4)
        backend.build(_KERNEL).kernel("answer", [memory]).enqueue((1,), (1,))
        backend.finish()
        return bytes(memory.view if memory.view is not None else memory.read()) == _ANSWER
    except OpFailed:
        return False


def _cuda_answers() -> bool:
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        (status,) = driver.cuInit(0)
        return bool(status == driver.CUresult.CUDA_SUCCESS)
    except (ImportError, RuntimeError):  # no library of NVIDIA's driver on this machine
        return False


if __name__ == "__main__":
    main()
