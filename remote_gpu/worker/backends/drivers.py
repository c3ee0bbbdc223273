"""The kinds of device with working drivers on this machine, found by a child process.

Importable libraries prove nothing: pyopencl and cuda-bindings import without a driver. An installed
driver may fail, hang or end its process. So a child builds and runs a small kernel on one device of
each kind; this process loads no driver and starts no thread, so it may be forked.
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

#: Time limit of the child: a first build takes PoCL 0.5 s on an idle core, and a card some seconds
#: to wake up. Slower drivers are not used.
_ANSWER_S = 30.0
_KERNEL = "__kernel void answer(__global int *x) { x[get_global_id(0)] = 42; }"
_ANSWER = b"\x2a\0\0\0"
_PRINTED = "answers: "  #: before the name of a kind; drivers print their own lines


@functools.cache
def working_kinds() -> frozenset[str]:
    """Those of the kinds `cpu`, `opencl` and `cuda` that run kernels here.

    `opencl` is any OpenCL device, including a CPU (`gpud --opencl all`). Found once per process.
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
    """The reason why kernels do not run on this machine's CPU, for people."""
    if importlib.util.find_spec("pyopencl") is None:
        return "its host has no packages for them: `pip install 'orchgpu[opencl]'` there"
    linker = "" if shutil.which("ld") else "; PoCL needs `ld` (install Debian's binutils)"
    return f"no working OpenCL driver for this machine's CPU{linker}"


def _output_of(command: list[str], environment: dict[str, str], limit_s: float = _ANSWER_S) -> str:
    """The output of a command, also after a failure: one driver may answer before another fails."""
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
    """`python -m remote_gpu.worker.backends.drivers`: try each kind, print the working ones."""
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # the spawner ignores it, but drivers wait for linkers
    on_cpu = _opencl_answers("cpu")
    if on_cpu:
        _print("cpu")
    if on_cpu or _opencl_answers("opencl"):
        _print("opencl")
    if _cuda_answers():
        _print("cuda")


def _print(kind: str) -> None:
    """Print at once: the next driver may end this process."""
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
