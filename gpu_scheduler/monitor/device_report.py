"""A host's devices, shortened to fit into one message. Pure.

Only warm keys have no small limit: a device has up to 1,024 of 256 characters each. Warm keys are a
hint for placement, so some are left out, first those of the device with the most bytes of keys.
"""

from __future__ import annotations

from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.model import Device
from gpu_scheduler.protocol.codec import PAGE_BYTES_MAX


def without_excess_keys(
    devices: tuple[Device, ...], bytes_max: int = PAGE_BYTES_MAX
) -> tuple[tuple[Device, ...], int]:
    """The devices with as many warm keys as fit, and the number of keys left out."""
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
