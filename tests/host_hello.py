"""The first request of a host's connection, as JSON."""

from __future__ import annotations

from typing import Any

DEVICE = {"id": "h/0", "index": 0, "kind": "cuda", "model": "M", "memory_mib": 1000}


def host_hello(**fields: Any) -> dict[str, Any]:
    """A hello of host `h` with one device, unless the fields differ; without `op` and `id`."""
    return {
        "role": "host",
        "host": "h",
        "incarnation": "i",
        "gateway": "h:1",
        "devices": [DEVICE],
        "epoch_seen": 0,
        "installed": [],
        "version": 1,
        **fields,
    }
