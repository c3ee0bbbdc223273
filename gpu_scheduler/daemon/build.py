"""Which build this is: it stands in the journal, so that another one can name who wrote it."""

from __future__ import annotations

import importlib.metadata


def _version() -> str:
    try:
        return importlib.metadata.version("orchgpu")
    except importlib.metadata.PackageNotFoundError:  # run from a folder, not installed
        return "unknown"


#: Version of the installed package.
BUILD = _version()
