"""The state of MPS and MIG: looked at, never changed."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.report import Figure
from tools.gpu_check.part import Answer, LeftOutError, Part, Target

PART = Part(
    title="The state of MPS and MIG, read only",
    order=70,
    limit_s=20,
    kinds=("cuda",),
    modules=("pynvml", "msgspec"),
)
_MPS_FOLDER = "/tmp/nvidia-mps"  #: NVIDIA's default


def run(target: Target) -> Answer:
    del target
    # here: a machine without the module has none of this part's notes
    from gpu_scheduler.monitor.drivers.nvml import NvmlDriver

    seen = NvmlDriver().poll()
    if isinstance(seen, str):
        raise LeftOutError(f"NVML: {seen}")
    slices = [device for device in seen.devices if str(device.id).startswith("MIG-")]
    notes = [
        f"{device.model} ({device.kind}): {device.detail or 'whole'}." for device in seen.devices
    ]
    notes.append(mps_state(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER))))
    return Answer(
        [
            Figure(metric="devices", value=len(seen.devices), unit="devices"),
            Figure(metric="mig_slices", value=len(slices), unit="slices"),
        ],
        notes,
    )


def mps_state(folder: Path) -> str:
    """A sentence about MPS's control daemon, by its files."""
    if (folder / "control").exists():
        return f"MPS: a control daemon has its pipe in {folder}."
    return "MPS: no control daemon has a pipe on this machine."
