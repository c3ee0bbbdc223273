"""Environments that hold one installation of ours: a wheel, one of its extras, and nothing else.

They are made offline: what a requirement needs is linked from the environment of the tests, so that
a package that an extra forgot to name is missing there as it would be for its user.
"""

from __future__ import annotations

import email
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Installation:
    """A virtual environment of Python without pip."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    def command(self, name: str) -> str:
        """The path of one of the wheel's commands."""
        return str(self.folder / "bin" / name)


def packages() -> list[str]:
    """The folders that the distribution is made of."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return [pattern.removesuffix("*") for pattern in settings["packages"]["find"]["include"]]


def built_wheel(source: Path, made: Path) -> Path:
    """The wheel, built from a copy in `source`: nothing is written beside the sources."""
    for file in ("pyproject.toml", "README.md", "LICENSE", "DATA-LICENSES.md"):
        shutil.copy(ROOT / file, source)
    for name in packages():
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(made)], cwd=source, check=True, capture_output=True
    )
    (built,) = made.glob("*.whl")
    return built


def install(
    folder: Path, wheel: Path, extras: Iterable[str] = (), *, ours: Installation | None = None
) -> Installation:
    """A new environment in `folder` with the wheel, its requirements and those of the extras.

    The wheel's own files are linked from `ours`, where that is given: pip installed them there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in sorted(_closure(_metadata(wheel), frozenset(extras))):
        _link(importlib.metadata.distribution(name), packages)
    if ours is not None:
        there = [str(path) for path in ours.folder.glob("lib/python*/site-packages")]
        (found,) = importlib.metadata.distributions(name="orchgpu", path=there)
        _link(found, packages)
        return Installation(folder)
    arguments = ["--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index"]
    arguments += ["--no-compile"]  # an import compiles what it needs
    subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", str(wheel)], check=True, timeout=60
    )
    return Installation(folder)


def extras_of(wheel: Path) -> list[str]:
    """The extras that the wheel names, those for development left out."""
    named = _metadata(wheel).get_all("Provides-Extra", [])
    return [name for name in named if name not in {"test", "dev", "install"}]


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def _closure(metadata: email.message.Message, extras: frozenset[str]) -> set[str]:
    """Names of all distributions that the wheel needs with these extras, without itself."""
    own = str(metadata["Name"])
    found: set[tuple[str, str]] = set()
    names: set[str] = set()
    waiting = [(own, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        requires = (
            metadata.get_all("Requires-Dist", [])
            if name == own
            else importlib.metadata.requires(name) or []
        )
        for needed in _applying(requires, extra):
            key = canonicalize_name(needed.name)
            waiting += [(key, one) for one in ("", *needed.extras)]
            names |= {key} - {own}
    return names


def _applying(requires: Iterable[str], extra: str) -> Iterator[Requirement]:
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _link(distribution: importlib.metadata.Distribution, packages: Path) -> None:
    """Links every file of a distribution; folders as a whole where no other one shares them."""
    source = Path(str(distribution.locate_file("")))
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", ""}}
    for top in sorted(tops):
        _link_path(source / top, packages / top)


def _link_path(source: Path, target: Path) -> None:
    if not source.exists() or source.name == "__pycache__":
        return
    if target.is_symlink() and target.is_dir() and target.resolve() != source.resolve():
        shared = target.resolve()  # a namespace package: a real folder with links of both
        target.unlink()
        target.mkdir()
        for child in shared.iterdir():
            (target / child.name).symlink_to(child)
    if target.is_dir() and not target.is_symlink():
        for child in source.iterdir():
            _link_path(child, target / child.name)
    elif not target.exists():
        target.symlink_to(source)
