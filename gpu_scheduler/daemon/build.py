"""The version of this build, written to the journal so that another version can name it."""

from __future__ import annotations

import importlib.metadata


def _version() -> str:
    try:
        return importlib.metadata.version("orchgpu")
    except importlib.metadata.PackageNotFoundError:  # run from a folder, not installed
        return "unknown"


#: Version of the installed package.
BUILD = _version()
