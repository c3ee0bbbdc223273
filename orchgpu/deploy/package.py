"""The function's zip: the runner, what it imports, the user's programs and files.

It is reproducible (sorted names, one fixed date, fixed modes): the same input gives the same
bytes, so an unchanged function is not deployed again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corekit.errors import invalid
from corekit.units import format_bytes
from corekit.values import Value
from fdl.model import Function
from fdl.plan.functions import Code
from fdl.plan.groups import STEPS_FILE, steps_json
from remote_gpu.middleware.registry import rules_table
from remote_gpu.wire.variables import TABLE

#: Our packages in the zip, below the folder of their top-level package. All of them import the
#: standard library only (and boto3, which the runtime has).
RUNTIME_PACKAGES = (
    "contract",
    "lambda_functions/work.py",
    "lambda_functions/gpu_runner",
    "remote_gpu/wire",
    "remote_gpu/client",
    "remote_gpu/forwarder",
    "orchgpu/declaration.py",
)
SCRIPT_FOLDER = "script"
#: The oldest date a zip can hold.
_DATE = (1980, 1, 1, 0, 0, 0)
_PROGRAM, _FILE = 0o755, 0o644
#: AWS's quota for an unzipped package; SCAR calls it max_s3_payload_size.
UNZIPPED_BYTES_MAX = 262144000


class Built(Value):
    """One zip."""

    data: bytes
    sha256: str  #: hex
    contents: str  #: sha256 of the user's own files, hex; "" = there are none

    @property
    def code(self) -> Code:
        return Code(sha256=self.sha256, size=len(self.data), contents=self.contents)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str  #: in the zip
    path: Path
    mode: int
    data: bytes | None = None  #: instead of the content of the path

    def content(self) -> bytes:
        """Raises INVALID."""
        if self.data is not None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise invalid(f"{self.path}: {error.strerror}") from error


def build(function: Function, folder: Path) -> Built:
    """The package of `function`, whose paths start at `folder`.

    Raises INVALID when a file is missing, has the name of one of ours, or the zip is too large.
    """
    own = {member.name: member for member in _users(function, folder)}
    for name in own:
        if name.split("/")[0] in _taken():
            raise invalid(f"extra_payload: {name!r} belongs to the runner; rename it")
    own |= {member.name: member for member in _programs(function, folder)}
    members = {member.name: member for member in _ours()} | own
    data = _zip([members[name] for name in sorted(members)])
    contents = _digest([own[name] for name in sorted(own)])
    return Built(data=data, sha256=hashlib.sha256(data).hexdigest(), contents=contents)


def _digest(members: list[_Member]) -> str:
    """A hash of the names, modes and contents of files; "" without files."""
    whole = hashlib.sha256()
    for member in members:
        content = hashlib.sha256(member.content()).hexdigest()
        whole.update(f"{member.name}\0{member.mode:o}\0{content}\n".encode())
    return whole.hexdigest() if members else ""


def _taken() -> tuple[str, ...]:
    return (*dict.fromkeys(name.split("/")[0] for name in RUNTIME_PACKAGES), SCRIPT_FOLDER)


def _ours() -> Iterator[_Member]:
    for package in RUNTIME_PACKAGES:
        top, _, inner = package.partition("/")
        home = _home(top)
        if inner:
            yield _Member(f"{top}/__init__.py", home / "__init__.py", _FILE)
        if inner.endswith(".py"):
            yield _Member(package, home / inner, _FILE)
        for path in sorted((home / inner).rglob("*.py")):
            yield _Member(f"{top}/{path.relative_to(home).as_posix()}", path, _FILE)
    # those of other packages that are installed here too
    yield _Member(f"remote_gpu/wire/{TABLE.name}", TABLE, _FILE, rules_table().encode())


def _home(package: str) -> Path:
    """The folder of a top-level package of ours, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise invalid(f"this installation lacks the package {package!r}; install it again")
    return Path(spec.origin).parent


def _users(function: Function, folder: Path) -> Iterator[_Member]:
    extra = function.function.extra_payload
    if extra is None:
        return
    root = folder / extra
    if not root.is_dir():
        raise invalid(f"extra_payload: {root} is not a folder")
    for path in sorted(root.rglob("*")):
        if path.is_file():
            mode = _PROGRAM if os.access(path, os.X_OK) else _FILE
            yield _Member(path.relative_to(root).as_posix(), path, mode)


def _programs(function: Function, folder: Path) -> Iterator[_Member]:
    if function.foreign and function.module is not None:
        yield _Member(function.module, _found(function, folder), _FILE)  # Lambda imports it
    elif function.steps:
        yield _Member(STEPS_FILE, folder, _FILE, steps_json(function))
        for step in function.steps:
            yield from _program(step, folder, f"{SCRIPT_FOLDER}/{step.name}")
    else:
        yield from _program(function, folder, SCRIPT_FOLDER)


def _program(function: Function, folder: Path, into: str) -> Iterator[_Member]:
    """The script, by its name alone; a handler's module, by its dotted path."""
    if function.runs is None:
        return
    path = _found(function, folder)
    if function.module is not None:
        yield _Member(f"{into}/{function.module}", path, _FILE)
    else:
        yield _Member(f"{into}/{path.name}", path, _PROGRAM)


def _found(function: Function, folder: Path) -> Path:
    path = folder / (function.runs or "")
    if not path.is_file():
        raise invalid(f"{'handler' if function.module else 'init_script'}: {path} does not exist")
    return path


def _zip(members: list[_Member]) -> bytes:
    total = 0
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            content = member.content()
            total += len(content)
            if total > UNZIPPED_BYTES_MAX:
                limit = format_bytes(UNZIPPED_BYTES_MAX)
                raise invalid(f"the package is larger than {limit} unzipped, AWS's maximum")
            info = zipfile.ZipInfo(member.name, _DATE)
            info.create_system = 3  # Unix: the modes below mean something
            info.external_attr = (0o100000 | member.mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()
