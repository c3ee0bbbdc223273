"""The files of a rule and those of a function's job: names of inputs, places of outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The resource of a rule that names the deployed function.
FUNCTION = "orchgpu_function"
#: Hexadecimal digits of an input's path in the name of its object.
_PATH_CHARS = 8


def function_of(resources: Mapping[str, object]) -> str | None:
    """The function of a rule; None for a rule that runs on this machine."""
    found = resources.get(FUNCTION)
    return str(found) if found else None


def only_input(inputs: Sequence[str]) -> Path:
    """The input of a rule. Raises ValueError for other than one."""
    if len(inputs) != 1:
        raise ValueError(f"a job has one input file, the rule has {len(inputs)}")
    return Path(inputs[0])


def object_name(file: Path) -> str:
    """The name of an input's object: that of the file, and different for every path.

    Jobs of `a/reads.fq` and `b/reads.fq` run at the same time; under one name the later upload
    would replace the earlier one.
    """
    path = hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:_PATH_CHARS]
    return f"{file.stem}-{path}{file.suffix}"


def placed(targets: Sequence[str], files: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each output of the rule with the job's file for it: the only one, or that with its suffix.

    Raises ValueError for an output without a file, or with several.
    """
    if len(targets) == len(files) == 1:
        return [(Path(targets[0]), files[0])]
    found: list[tuple[Path, Path]] = []
    for target in map(Path, targets):
        fitting = [file for file in files if file.suffix == target.suffix]
        if len(fitting) != 1 or any(file == fitting[0] for _, file in found):
            names = ", ".join(file.name for file in files) or "nothing"
            raise ValueError(f"{target}: one file with its suffix is needed; the job wrote {names}")
        found.append((target, fitting[0]))
    return found
