"""The devices of the paper's test system, emulated with its median times.

Two NVIDIA Quadro K600 with two parallel instances each, one Intel Movidius stick with one; median
execution times of tiny-YOLO v2 of 1675 and 1577 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

OPERATION = "detect"
GPU_MS, VPU_MS = 1675.0, 1577.0
#: Standard deviation of execution times; the paper states none, 20 to 40 % fit its maxima.
SPREAD_PCT = 30.0
SEED = 2208
GPUS, GPU_SLOTS, VPU_SLOTS = 2, 2, 1
GPU_MEMORY_MIB, VPU_MEMORY_MIB = 1024, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSystem:
    """The devices of one run."""

    name: str
    vpu: bool
    cold_ms: float
    time_scale: float
    spread_pct: float = SPREAD_PCT

    @property
    def count(self) -> int:
        """The number of devices."""
        return GPUS + self.vpu

    @property
    def slots(self) -> int:
        return GPUS * GPU_SLOTS + (VPU_SLOTS if self.vpu else 0)

    @property
    def ceiling_per_s(self) -> float:
        """Executions per unscaled second with all slots busy at the paper's medians."""
        gpus = GPUS * GPU_SLOTS / GPU_MS * 1000
        return gpus + (VPU_SLOTS / VPU_MS * 1000 if self.vpu else 0.0)

    def write(self, folder: Path) -> Path:
        """The file for `gpud --emulate`."""
        devices = [
            self._device("cuda", "Quadro K600", GPUS, GPU_MEMORY_MIB, GPU_SLOTS, GPU_MS),
            self._device("vpu", "Movidius NCS", 1, VPU_MEMORY_MIB, VPU_SLOTS, VPU_MS),
        ]
        content = {
            "seed": SEED,
            "time_scale": self.time_scale,
            "devices": devices if self.vpu else devices[:1],
        }
        path = folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def _device(
        self, kind: str, model: str, count: int, memory_mib: int, slots: int, warm_ms: float
    ) -> dict[str, Any]:
        times = {"warm_ms": warm_ms, "cold_ms": self.cold_ms, "spread_pct": self.spread_pct}
        return {
            "kind": kind,
            "model": model,
            "count": count,
            "memory_mib": memory_mib,
            "slots": slots,
            "operations": {OPERATION: times},
        }
