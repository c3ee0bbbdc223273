"""The packages of a machine of a stack: one archive of wheels, named by its SHA-256.

The wheels are those of the versions of this installation, for the machine's processor, so that a
machine needs no package index and all machines run what was tried here.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.infra.template import FILES

#: The Python of Amazon Linux 2023's own packages that is used.
PYTHON = "3.11"
#: glibc of Amazon Linux 2023 is 2.34; wheels for older ones run there too.
_GLIBC = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
_INSTALL = FILES / "cloudformation" / "install.sh"
_SOURCE = Path(__file__).resolve().parents[2]
#: Packages of which the index has sources alone; their wheels are for every machine.
_SOURCES_ALONE = ("localstack-client", "antlr4-python3-runtime")
#: Parts of a clone that are not in the wheel.
_NOT_BUILT = shutil.ignore_patterns(
    *(".*", "__pycache__", "build", "dist", "*.egg-info", "tests", "docs", "benchmarks", "tools")
)
#: Wheels are zip files, whose dates begin here; equal sources make equal archives.
_EPOCH = "315532800"


class Bundle(Value):
    """An archive on this machine."""

    file: Path
    sha256: str

    def key(self, stack: str) -> str:
        """Its key in the state bucket."""
        return f"infra/{stack}/{self.sha256}.tar"


def architecture(instance_type: str) -> str:
    """The processor of an instance type: Graviton types have a g behind their generation."""
    family = instance_type.partition(".")[0]
    generation = family.lstrip("abcdefghijklmnopqrstuvwxyz")
    return "aarch64" if "g" in generation else "x86_64"


def own_wheel(folder: Path) -> Path:
    """The wheel of this program, from a copy of its sources: it is on no package index.

    Raises INVALID where there are none.
    """
    if not (_SOURCE / "pyproject.toml").is_file():
        text = f"{_SOURCE} has no sources of orchgpu, of which its machines get a wheel"
        raise invalid(f"{text}: install it from a clone of the repository (pip install -e .)")
    with tempfile.TemporaryDirectory(prefix="orchgpu-") as copy:
        sources = shutil.copytree(_SOURCE, Path(copy, "orchgpu"), ignore=_NOT_BUILT)
        _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    [wheel] = folder.glob("orchgpu-*.whl")
    return wheel


def build(own: Path, machine: str, extras: str, wheels: Path | None = None) -> Bundle:
    """The archive for a processor, beside this program's wheel.

    `extras`: of `orchgpu`; `wheels`: where all others are, instead of the package index. Raises
    UNAVAILABLE.
    """
    folder = own.parent / "-".join([machine, *extras.split(",")])
    folder.mkdir()
    shutil.copy(own, folder)
    _download(f"{own}[{extras}]" if extras else str(own), folder, machine, wheels)
    return _packed(folder, own.parent, extras)


def _download(requirement: str, folder: Path, machine: str, wheels: Path | None) -> None:
    platforms = (f"--platform=manylinux_{glibc}_{machine}" for glibc in _GLIBC)
    version = ("--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:")
    constraints = folder / "constraints.txt"
    versions = _versions()
    constraints.write_text("".join(f"{name}=={found}\n" for name, found in versions.items()))
    if wheels is None:
        made = [f"{name}=={versions[name]}" for name in _SOURCES_ALONE if name in versions]
        built = folder / "built"
        _pip("wheel", "--no-deps", "--wheel-dir", str(built), *made)
        source = ["--find-links", str(built)]
    else:
        source = ["--no-index", "--find-links", str(wheels)]
    kept = ("--dest", str(folder), "--constraint", str(constraints))
    _pip("download", *kept, *version, *platforms, *source, requirement)
    constraints.unlink()


def _versions() -> dict[str, str]:
    """The versions of this installation."""
    found = {str(canonicalize_name(one.name)): one.version for one in distributions() if one.name}
    return {name: one for name, one in sorted(found.items()) if name != "orchgpu"}


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _EPOCH}
    done = subprocess.run(
        [*command, *arguments[1:]], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended without a message"]
        first = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        text = f"the packages of the machines cannot be fetched: pip {arguments[0]}: {first}"
        raise AppError(ErrorCode.UNAVAILABLE, text)


def _packed(folder: Path, to: Path, extras: str) -> Bundle:
    """One archive of the wheels and of the program that installs them; equal for equal contents."""
    file = to / f"{folder.name}.tar"
    named = f"orchgpu[{extras}]" if extras else "orchgpu"
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (
            ("install.sh", _INSTALL.read_bytes()),
            ("requirements.txt", f"{named}\n".encode()),
        ):
            archive.addfile(_member(name, len(content)), io.BytesIO(content))
        for wheel in sorted(folder.glob("*.whl")):
            with wheel.open("rb") as opened:
                archive.addfile(_member(wheel.name, wheel.stat().st_size), opened)
    with file.open("rb") as opened:
        return Bundle(file=file, sha256=hashlib.file_digest(opened, "sha256").hexdigest())


def _member(name: str, size: int) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.mode = size, 0o644
    return found
