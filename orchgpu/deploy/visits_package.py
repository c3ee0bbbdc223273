"""The zip of an orchestrator that runs as functions: this program and the libraries that it needs.

The libraries are those that are installed. For AWS the ones with machine code are downloaded in the
same versions, for Lambda's Python and the function's processor.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from corekit.errors import AppError, ErrorCode
from fdl.plan.functions import Code
from orchgpu.deploy.package import UNZIPPED_BYTES_MAX

#: Lambda's runtime, and the version of its Python.
RUNTIME, _PYTHON = "python3.12", "3.12"
#: glibc of Lambda's Amazon Linux 2023 is 2.34.
_GLIBC = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
_OURS = ("corekit", "contract", "gpu_scheduler", "remote_gpu", "fdl", "orchgpu", "lambda_functions")
#: Libraries of commands alone.
_NOT_NEEDED = frozenset({"click", "rich", "pygments", "markdown-it-py", "mdurl"})
#: botocore describes every service of AWS: 80 MB, of which these are used.
_SERVICES = frozenset({"s3", "sqs", "lambda", "sts", "sns", "secretsmanager", "ssm"})
_CODE = frozenset({".py", ".so", ".csv", ".json", ".toml", ".yaml", ".txt", ".pem", ".gz", ""})
#: The oldest date a zip can hold; equal contents make equal zips.
_DATE = (1980, 1, 1, 0, 0, 0)


@functools.cache
def build(*, local: bool, architecture: str, ca: bytes | None) -> tuple[Code, bytes]:
    """The package, built once; `ca`: the authority of the scheduler's certificate.

    Raises UNAVAILABLE when the libraries cannot be downloaded, and NOT_FOUND as `libraries` does.
    """
    files = {name: path.read_bytes() for name, path in _ours()}
    if ca is not None:
        files["ca.pem"] = ca
    needed = libraries({} if local else environment_of(architecture))
    compiled = [] if local else [name for name in needed if not _is_pure(name)]
    installed = [name for name in needed if name not in compiled]
    files |= {name: path.read_bytes() for name, path in _installed(installed)}
    files |= _downloaded(compiled, architecture) if compiled else {}
    size = sum(map(len, files.values()))
    if size > UNZIPPED_BYTES_MAX:
        raise AppError(ErrorCode.INTERNAL, f"the orchestrator's package has {size} bytes")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    data = buffer.getvalue()
    return Code(sha256=hashlib.sha256(data).hexdigest(), size=len(data)), data


def _ours() -> Iterator[tuple[str, Path]]:
    for package in _OURS:
        spec = importlib.util.find_spec(package)
        origin = None if spec is None else spec.origin
        assert origin is not None, f"{package} is a package of ours"
        home = Path(origin).parent
        for path in home.rglob("*"):
            inner = path.relative_to(home)
            if path.is_file() and path.suffix in _CODE and "examples" not in inner.parts:
                yield f"{package}/{inner.as_posix()}", path


def _is_pure(name: str) -> bool:
    """True for a library that is the same for every machine."""
    return "Root-Is-Purelib: true" in (metadata.distribution(name).read_text("WHEEL") or "")


def _installed(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for name in names:
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if _is_needed(file.as_posix()) and path.is_file():
                yield file.as_posix(), path


def _downloaded(names: Iterable[str], architecture: str) -> dict[str, bytes]:
    pinned = [f"{name}=={metadata.version(name)}" for name in names]
    machine = _MACHINES[architecture]
    platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in _GLIBC]
    version = ["--python-version", _PYTHON, "--implementation", "cp", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory(prefix="orchgpu-") as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--disable-pip-version-check", "--target", folder, *platforms, *version]
        done = subprocess.run([*command, *pinned], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            text = f"the libraries of the orchestrator cannot be fetched: pip: {last}"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        found = ((path.relative_to(folder).as_posix(), path) for path in Path(folder).rglob("*"))
        return {name: path.read_bytes() for name, path in found if _is_needed(name, path)}


def libraries(
    environment: Mapping[str, str], requires: Callable[[str], list[str] | None] = metadata.requires
) -> list[str]:
    """The libraries that this program needs without its extras, by name.

    `environment`: variables of markers (PEP 508) that differ from this Python's. Raises NOT_FOUND
    for a library that is needed there and not installed here.
    """
    todo, found = ["orchgpu"], dict[str, None]()
    while todo:
        for text in requires(todo.pop()) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            name = canonicalize_name(requirement.name)
            if name in _NOT_NEEDED or name in found:
                continue
            if marker is None or marker.evaluate({**environment, "extra": ""}):
                found[name] = None
                todo.append(name)
                _check_installed(requirement, requires)
    return sorted(found)


def _check_installed(requirement: Requirement, requires: Callable[[str], list[str] | None]) -> None:
    try:
        requires(requirement.name)
    except metadata.PackageNotFoundError:
        wanted = f"{requirement.name}{requirement.specifier}"
        text = f"the orchestrator's functions run on Python {_PYTHON} and need {wanted}, which is"
        text += f" not installed here: `pip install '{wanted}'`, then deploy again"
        raise AppError(ErrorCode.NOT_FOUND, text) from None


def environment_of(architecture: str) -> dict[str, str]:
    """The variables of markers in Lambda's runtime."""
    return {
        "python_version": _PYTHON,
        "python_full_version": f"{_PYTHON}.0",
        "implementation_name": "cpython",
        "implementation_version": f"{_PYTHON}.0",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": _MACHINES[architecture],
    }


def _is_needed(name: str, path: Path | None = None) -> bool:
    """False for a program of a library, and for a service of botocore that is not called."""
    if (path is not None and not path.is_file()) or name.startswith(("..", "bin/")):
        return False
    first, *inner = name.split("/")
    if "__pycache__" in inner or first in ("pip", "setuptools"):
        return False
    if inner[:1] == ["data"] and first in ("botocore", "boto3", "aiobotocore"):
        return len(inner) == 2 or inner[1] in _SERVICES
    return True
