"""The files of the repository, as git lists them: tracked ones, and new ones not ignored."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked(*patterns: str) -> tuple[Path, ...]:
    """The files that match, in the order of their names; deleted ones are left out."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(ROOT / name for name in names.splitlines() if (ROOT / name).exists())


def outside(path: Path, *folders: str) -> bool:
    """Whether a file lies in none of these folders."""
    return not str(path.relative_to(ROOT)).startswith(folders)
