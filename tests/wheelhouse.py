"""Wheels of what is installed here, for machines of tests that reach no package index."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def wheelhouse(folder: Path, *names: str) -> None:
    """The wheels of distributions and of all that they require; `name[extra]` with its extra."""
    wanted, seen = [Requirement(name) for name in names], set[tuple[str, str]]()
    while wanted:
        requirement = wanted.pop()
        found = distribution(requirement.name)
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key not in seen:
                seen.add(key)
                wanted += _required(found, extra)
    for name in {name for name, _ in seen}:
        if name != "orchgpu":  # it is built from its sources
            _pack(distribution(name), folder)


def _required(found: Distribution, extra: str) -> Iterator[Requirement]:
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _pack(found: Distribution, folder: Path) -> None:
    """The wheel of an installed distribution: its files, but programs and caches."""
    about = found.read_text("WHEEL") or ""
    tags = [line.partition(": ")[2] for line in about.splitlines() if line.startswith("Tag: ")]
    parts = zip(*(tag.split("-") for tag in tags), strict=True)
    tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
    name = str(found.metadata["Name"]).replace("-", "_").replace(".", "_")
    file = folder / f"{name}-{found.version}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        lines = []
        for one in found.files or ():
            if (
                ".." in one.parts
                or "__pycache__" in one.parts
                or one.name in ("RECORD", "INSTALLER")
            ):
                continue
            wheel.write(str(one.locate()), str(one))
            lines.append(f"{one},,")
        [record] = [one for one in found.files or () if one.name == "RECORD"]
        wheel.writestr(str(record), "\n".join([*lines, f"{record},,", ""]))
