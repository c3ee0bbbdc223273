"""The numbers of NVIDIA devices in a process that sees some of a machine's only."""

from __future__ import annotations

import os

from remote_gpu.wire.errors import OpCode, OpFailed


def visible_ordinal(device: str) -> int:
    """The number of a device among those that CUDA numbers in this process; "" = the first.

    `device`: the driver's id (`GPU-…`, `MIG-…`). Raises OpFailed(ENODEV) for one that is hidden.
    """
    visible = [item.strip() for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if device in visible:
        return visible.index(device)
    if device and any(visible):
        raise OpFailed(OpCode.ENODEV, f"{device} is not among the devices of this process")
    return 0
