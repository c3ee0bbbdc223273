"""The previous release: packages of scheduler, host and client, as sources.

There is no release yet, so it is a commit of this repository. `python -m tools.previous_release
COMMIT` replaces the archive; do so with the tag of each release.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

#: Its packages; the licence goes with them.
PACKAGES = ("corekit", "contract", "gpu_scheduler", "remote_gpu")
FOLDER = Path(__file__).parent


def archive() -> Path:
    """The one archive."""
    (found,) = FOLDER.glob("packages-*.tar.xz")
    return found


def unpack(folder: Path) -> Path:
    """Unpack the sources; a program of it runs with this folder as its PYTHONPATH."""
    with tarfile.open(archive()) as packed:
        packed.extractall(folder, filter="data")
    return folder
