"""Function packages of one file."""

from __future__ import annotations

import io
import zipfile


def zipped(source: str) -> bytes:
    """A package whose `app.py` is the source."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", source)
    return buffer.getvalue()
