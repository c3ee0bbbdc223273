"""What compilers keep for a tenant's next lease has a limit: sources are free to differ."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

#: Of one tenant on one host: thousands of kernels, in some seconds compiled anew.
COMPILED_BYTES_MAX = 512 << 20


def trim(folder: Path, bytes_max: int = COMPILED_BYTES_MAX) -> None:
    """Empty a folder of compiled kernels that has grown over its limit.

    It goes as a whole: compilers keep several files for a kernel, and which belong together is
    theirs to know. A worker that uses it meanwhile compiles again.
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
    except OSError:  # another worker of the tenant is at it
        return
    shutil.rmtree(old, ignore_errors=True)
