"""Cards of a host that has none: stand-ins for libcuda and NVML over one file of facts.

`tests/contract/cuda_driver.c` and `tests/unit/gpu_scheduler_monitor/nvidia_ml.c` are compiled; both
read the boards, their memory and the injected errors from that file, at every call.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")
SOURCES = {
    "libcuda.so.1": ROOT / "contract" / "cuda_driver.c",
    "libcublasLt.so.13": ROOT / "contract" / "cublas.c",
    "libcublas.so.13": ROOT / "contract" / "cublas.c",
    "libnvidia-ml.so.1": ROOT / "unit" / "gpu_scheduler_monitor" / "nvidia_ml.c",
}
CONTEXT_MIB = 300
needs_stand_ins = [
    pytest.mark.skipif(COMPILER is None, reason="the stand-ins need a C compiler"),
    pytest.mark.skipif(
        importlib.util.find_spec("cuda") is None, reason="the cuda extra is not installed"
    ),
]


def compile_stand_ins(folder: Path) -> None:
    """The libraries, in a folder for `LD_LIBRARY_PATH` that users of leases may read."""
    folder.chmod(0o755)
    for target, source in SOURCES.items():
        command = [str(COMPILER), "-shared", "-fPIC", "-o", str(folder / target), str(source)]
        subprocess.run([*command, "-ldl"], check=True)


class Cards:
    """Two cards, and what happens to them."""

    def __init__(self, libraries: Path) -> None:
        self.libraries = libraries
        self._shared = Path("/dev/shm") / f"orchgpu-stand-in-{secrets.token_hex(8)}"
        self._facts = {"boards": "2", "driver": "580.1", "cuda": "13000"}
        self._facts |= {"shared": str(self._shared)}
        for board, uuid in enumerate(("GPU-a", "GPU-b")):
            facts = {"uuid": uuid, "name": "Stand-in", "total_mib": "4096", "used_mib": "3"}
            facts["context_mib"] = str(CONTEXT_MIB)
            self._facts |= {f"{board}.{key}": value for key, value in facts.items()}
        self.set()

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a gpud with these cards."""
        path = f"{self.libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        return {"LD_LIBRARY_PATH": path, "FAKE_NVML": str(self.libraries / "facts")}

    def set(self, **facts: str) -> None:
        """Add facts for both libraries, in place of those of the last call; `_0_fail` is
        `0.fail`."""
        new = self.libraries / "facts.new"
        named = {key.lstrip("_").replace("_", ".", 1): value for key, value in facts.items()}
        lines = (f"{key} {value}\n" for key, value in {**self._facts, **named}.items())
        new.write_text("".join(lines))
        new.chmod(0o644)
        new.replace(self.libraries / "facts")

    def board(self, uuid: str) -> str:
        """The number of a card."""
        return next(key[0] for key, value in self._facts.items() if value == uuid)

    def close(self) -> None:
        """Remove the figures of processes that have ended since NVML was last asked."""
        for left in self._shared.parent.glob(f"{self._shared.name}.*"):
            left.unlink(missing_ok=True)
