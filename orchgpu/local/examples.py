"""The packaged examples: their definitions, their inputs, and the data their hosts must hold."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from corekit.values import Value

#: The examples of the demo, in this order; `hello-device` is for a user's first steps.
DEMO_EXAMPLES = ("sequence-search", "text-recognition")


class Example(Value):
    """One folder of `fdl/examples`."""

    name: str  #: of the folder and of the function
    definition: Path
    inputs: tuple[Path, ...]


def example(name: str) -> Example:
    """Raises NOT_FOUND when the installation lacks it."""
    folder = _examples() / name
    definition = folder / "fdl.yaml"
    if not definition.is_file():
        raise AppError(ErrorCode.NOT_FOUND, f"this installation has no example {name!r}")
    inputs = tuple(sorted(path for path in (folder / "input").iterdir() if path.is_file()))
    return Example(name=name, definition=definition, inputs=inputs)


def resident_data() -> dict[str, str]:
    """The data sets of the examples, for `gpud --data NAME=PATH`: every `database` folder."""
    files = sorted(_examples().glob("*/database/*.fasta"))
    return {file.stem: str(file) for file in files}


def _examples() -> Path:
    """The folder as files: functions are packaged, and other processes read the data."""
    return Path(str(importlib.resources.files("fdl"))) / "examples"
