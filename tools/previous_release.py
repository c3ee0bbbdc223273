"""`python -m tools.previous_release COMMIT`: the fixture of the tests between two versions.

Writes the packages of that commit, with the licence, to `tests/previous_release/`, in the place of
those of another commit. The same commit gives the same bytes.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile

from tests.previous_release import FOLDER, PACKAGES

#: A fixture, not a release: the archive stays small.
BYTES_MAX = 1_000_000


def main(commit: str) -> None:
    """Replace the archive. Exit status 1 when it would be too large."""
    git = ["git", "-C", str(FOLDER.parents[1])]
    full = subprocess.run(
        [*git, "rev-parse", "--verify", f"{commit}^{{commit}}"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    packed = subprocess.run(
        [*git, "archive", full, *PACKAGES, "LICENSE"], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as found:
        files = len(found.getmembers())
    data = lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME)
    if len(data) > BYTES_MAX:
        sys.exit(f"{len(data)} bytes are more than {BYTES_MAX}")
    target = FOLDER / f"packages-{full[:8]}.tar.xz"
    for old in FOLDER.glob("packages-*.tar.xz"):
        old.unlink()
    target.write_bytes(data)
    print(f"{target.name}: {files} files, {len(data)} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
