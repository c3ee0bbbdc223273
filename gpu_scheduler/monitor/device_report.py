"""A host's devices as they fit into one message. Pure.

Only warm keys grow without a device more: up to 1,024 of 256 characters each. They are a hint for
placement, so those that have no room are left out, of the device with the most of them first.
"""

from __future__ import annotations

from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.model import Device
from gpu_scheduler.protocol.codec import PAGE_BYTES_MAX


def fitting(
    devices: tuple[Device, ...], bytes_max: int = PAGE_BYTES_MAX
) -> tuple[tuple[Device, ...], int]:
    """The devices with as many of their warm keys as fit; and how many keys are left out."""
    sizes = [len(encode_json(device)) for device in devices]
    kept = list(devices)
    left_out = 0
    while sum(sizes) > bytes_max:
        longest = max(range(len(kept)), key=lambda at: _bytes_of(kept[at].resident))
        keys = kept[longest].resident
        if not keys:
            break  # the limit of devices bounds what is left
        kept[longest] = replace(kept[longest], resident=keys[: len(keys) // 2])
        left_out += len(keys) - len(keys) // 2
        sizes[longest] = len(encode_json(kept[longest]))
    return tuple(kept), left_out


def _bytes_of(words: tuple[str, ...]) -> int:
    return sum(map(len, words))
