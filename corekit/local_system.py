"""The local system of this machine (`orchgpu up`), as programs find it.

Its folder is `$ORCHGPU_HOME`, else `.orchgpu` in the working directory. The supervisor holds a lock
on the file `lock` as long as it runs, and writes `system.json`, whose `scheduler` is the address of
the scheduler's socket endpoint.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from corekit.errors import invalid

#: Names the folder of the local system.
HOME_VARIABLE = "ORCHGPU_HOME"
LOCK, SYSTEM = "lock", "system.json"


def local_folder() -> Path:
    """The folder, which need not exist."""
    return Path(os.environ.get(HOME_VARIABLE) or ".orchgpu").absolute()


def is_supervised(folder: Path) -> bool:
    """True while a supervisor holds the lock. Nothing is written: the disk may be read-only.

    Raises INVALID for a folder that cannot be read.
    """
    try:
        with (folder / LOCK).open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise invalid(f"cannot use {folder} for the local system: {error}") from error
    return False


def local_scheduler() -> str | None:
    """The scheduler of the running local system, as `address:port`; None: none runs here."""
    folder = local_folder()
    if not is_supervised(folder):
        return None
    try:
        found = json.loads((folder / SYSTEM).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise invalid(f"{folder / SYSTEM} cannot be read: {error}") from error
    address = found.get("scheduler") if isinstance(found, dict) else None
    return address if isinstance(address, str) else None
