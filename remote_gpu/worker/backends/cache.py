"""The limit of a tenant's cache of compiled kernels."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

#: Of one tenant on one host: thousands of kernels, which compile again within seconds.
COMPILED_BYTES_MAX = 512 << 20


def trim(folder: Path, bytes_max: int = COMPILED_BYTES_MAX) -> None:
    """Remove a folder of compiled kernels above its limit.

    As a whole, because only compilers know which files belong to one kernel. A worker that uses the
    folder meanwhile compiles again.
    """
    sizes = (
        (Path(place) / name).lstat().st_size
        for place, _, names in os.walk(folder)
        for name in names
    )
    try:
        if sum(sizes) <= bytes_max:
            return
        old = folder.with_name(f"old-{secrets.token_hex(8)}")
        folder.rename(old)
    except OSError:  # another worker of the tenant removes it
        return
    shutil.rmtree(old, ignore_errors=True)
