"""A Python file with `@orchgpu.function` as the text of a definition."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from corekit.errors import AppError, ErrorCode, invalid

SUFFIX = ".py"
#: Of an import: a module that also imports large libraries takes seconds.
IMPORT_S = 60.0
_ERROR_LINES = 12


def text_of(file: Path) -> bytes:
    """The definition as YAML. The file is imported by a process of its own, with this interpreter.

    Raises NOT_FOUND, and INVALID with the end of the traceback when the import fails.
    """
    if not file.is_file():
        raise AppError(ErrorCode.NOT_FOUND, f"{file}: no such file")
    command = [sys.executable, "-m", "orchgpu.declaration", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        text = f"{file}: its import took more than {IMPORT_S:g} s; do the work inside of functions"
        raise invalid(text) from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").rstrip().splitlines()
        last = "\n".join(errors[-_ERROR_LINES:])
        raise invalid(f"{file} cannot be imported:\n{last}")
    document = json.loads(done.stdout)
    if not document["functions"]["aws"]:
        raise invalid(f"{file} declares nothing: no function of it has @orchgpu.function(…)")
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
