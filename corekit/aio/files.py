"""Small files that are replaced whole: a reader finds the old content or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def replace_json(path: Path, value: Mapping[str, object], *, private: bool = False) -> None:
    """Replace a JSON file atomically. Raises OSError, and leaves nothing beside the file then.

    A `private` file is readable by its owner alone, whatever a program that died left there.
    """
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=0o600 if private else 0o666, exist_ok=False)
        new.write_text(json.dumps(value, indent=2) + "\n")
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
