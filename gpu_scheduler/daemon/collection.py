"""Garbage collection beside a large state.

Leases and records are a few hundred MiB of objects without cycles (`benchmarks.scale.hour`). Python
visits all of them in a full collection, and no lease is granted meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def visited_once() -> Iterator[None]:
    """Within the block, a full collection visits only what was made since the last one.

    What exists now, and what a full collection leaves, is then freed by its reference count alone:
    cycles of such objects stay until the block ends. It holds for the whole process.
    """
    gc.freeze()
    gc.callbacks.append(_freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze)
        gc.unfreeze()


def _freeze(phase: str, about: Mapping[str, int]) -> None:
    if phase == "stop" and about["generation"] == 2:
        gc.freeze()
