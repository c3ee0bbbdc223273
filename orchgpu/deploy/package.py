"""The function's zip: the runner, what it imports, the user's programs and files.

It is reproducible (sorted names, one fixed date, fixed modes): the same input gives the same
bytes, so an unchanged function is not deployed again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from corekit.errors import invalid
from corekit.units import format_bytes
from corekit.values import Value
from fdl.model import Function
from fdl.plan.functions import Code
from fdl.plan.groups import STEPS_FILE, steps_json
from orchgpu.deploy.packing import File, below, read, within
from remote_gpu.middleware.registry import rules_table
from remote_gpu.wire.variables import TABLE

#: Our packages in the zip, below the folder of their top-level package. All of them import the
#: standard library only (and boto3, which the runtime has).
RUNTIME_PACKAGES = (
    "contract",
    "lambda_functions/work.py",
    "lambda_functions/gpu_runner",
    "lambda_functions/http_api",
    "remote_gpu/wire",
    "remote_gpu/client",
    "remote_gpu/forwarder",
    "orchgpu/declaration.py",
)
#: Modules that the runner and its Python import; the package comes first on Lambda's import path.
_IMPORTED = sys.stdlib_module_names | {"boto3", "botocore", "sitecustomize", "usercustomize"}
SCRIPT_FOLDER = "script"
#: The oldest date a zip can hold.
_DATE = (1980, 1, 1, 0, 0, 0)
_PROGRAM, _FILE = 0o755, 0o644
#: AWS's quota for an unzipped package; SCAR calls it max_s3_payload_size.
UNZIPPED_BYTES_MAX = 262144000


class PackedFile(Value):
    """One of the user's files in a zip."""

    name: str  #: in the zip
    size: int  #: bytes
    source: str  #: its path on this machine


class Built(Value):
    """One zip."""

    data: bytes
    sha256: str  #: hex
    contents: str  #: sha256 of the user's own files, hex; "" = there are none
    files: tuple[PackedFile, ...] = ()  #: the user's own, by name

    @property
    def code(self) -> Code:
        return Code(sha256=self.sha256, size=len(self.data), contents=self.contents)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str  #: in the zip
    mode: int
    file: File | None = None
    data: bytes = b""  #: where there is no file

    @property
    def size(self) -> int:
        return len(self.data) if self.file is None else self.file.size


def build(function: Function, folder: Path, *, outside: bool = False) -> Built:
    """The package of `function`, whose paths start at `folder`.

    `outside`: its files may be anywhere. Raises INVALID when a file is missing, leads out of the
    folder, has the name of one of ours, or the files are too large; nothing large is read before.
    """
    root = None if outside else folder.resolve()
    own = {member.name: member for member in _users(function, folder, root)}
    for name in own:
        if name.split("/")[0] in _taken():
            raise invalid(f"extra_payload: {name!r} belongs to the runner; rename it")
        if not function.foreign and _module(name) in _IMPORTED:
            text = f"extra_payload: the runner would import {name!r} in place of its own module; "
            text += "rename it, or move it to a folder that variables: {PYTHONPATH: …} names"
            raise invalid(text)
    own |= {member.name: member for member in _programs(function, folder, root)}
    members = {member.name: member for member in _ours()} | own
    _check_size(list(members.values()))
    data, contents = _packed(members, own, root)
    return Built(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        contents=contents,
        files=tuple(
            PackedFile(name=name, size=member.size, source=str(member.file.path))
            for name, member in sorted(own.items())
            if member.file is not None
        ),
    )


def _check_size(members: list[_Member]) -> None:
    """Raises INVALID before anything is read. Above 32 MiB zipped, deploy sends it by a bucket."""
    total = sum(member.size for member in members)
    if total > UNZIPPED_BYTES_MAX:
        largest = max(members, key=lambda member: member.size)
        named = f"{largest.file.path if largest.file else largest.name}"
        raise invalid(
            f"the package has {format_bytes(total)}, and is larger than"
            f" {format_bytes(UNZIPPED_BYTES_MAX)} unzipped, AWS's maximum: the largest file is"
            f" {named} ({format_bytes(largest.size)})"
        )


def _taken() -> tuple[str, ...]:
    return (*dict.fromkeys(name.split("/")[0] for name in RUNTIME_PACKAGES), SCRIPT_FOLDER)


def _module(name: str) -> str:
    first, *inner = name.split("/")
    is_module = inner == ["__init__.py"] or not inner
    return first.partition(".")[0] if is_module and name.endswith((".py", ".pyc", ".so")) else ""


def _ours() -> Iterator[_Member]:
    for package in RUNTIME_PACKAGES:
        top, _, inner = package.partition("/")
        home = _home(top)
        if inner:
            yield _Member(f"{top}/__init__.py", _FILE, within(home / "__init__.py", None))
        if inner.endswith(".py"):
            yield _Member(package, _FILE, within(home / inner, None))
        for path in sorted((home / inner).rglob("*.py")):
            name = f"{top}/{path.relative_to(home).as_posix()}"
            yield _Member(name, _FILE, within(path, None))
    # those of other packages that are installed here too
    yield _Member(f"remote_gpu/wire/{TABLE.name}", _FILE, data=rules_table().encode())


def _home(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise invalid(f"this installation lacks the package {package!r}; install it again")
    return Path(spec.origin).parent


def _users(function: Function, folder: Path, root: Path | None) -> Iterator[_Member]:
    extra = function.function.extra_payload
    if extra is None:
        return
    payload = folder / extra
    if not payload.is_dir():
        raise invalid(f"extra_payload: {payload} is not a folder")
    for file in below(payload, root):
        name = file.path.relative_to(payload).as_posix()
        yield _Member(_encodable(name), _PROGRAM if file.program else _FILE, file)


def _encodable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise invalid(f"extra_payload: the name {name!r} is not UTF-8; rename it") from None
    return name


def _programs(function: Function, folder: Path, root: Path | None) -> Iterator[_Member]:
    if function.foreign and function.module is not None:
        # Lambda imports it
        yield _Member(function.module, _FILE, _found(function, folder, root))
    elif function.steps:
        yield _Member(STEPS_FILE, _FILE, data=steps_json(function))
        for step in function.steps:
            yield from _program(step, folder, f"{SCRIPT_FOLDER}/{step.name}", root)
    else:
        yield from _program(function, folder, SCRIPT_FOLDER, root)


def _program(function: Function, folder: Path, into: str, root: Path | None) -> Iterator[_Member]:
    if function.runs is None:
        return
    file = _found(function, folder, root)
    if function.module is not None:
        yield _Member(f"{into}/{function.module}", _FILE, file)
    else:
        yield _Member(f"{into}/{_encodable(file.path.name)}", _PROGRAM, file)


def _found(function: Function, folder: Path, root: Path | None) -> File:
    path = folder / (function.runs or "")
    if not path.is_file():
        raise invalid(f"{'handler' if function.module else 'init_script'}: {path} does not exist")
    return within(path, root)


def _packed(
    members: Mapping[str, _Member], own: Mapping[str, _Member], root: Path | None
) -> tuple[bytes, str]:
    buffer, whole = io.BytesIO(), hashlib.sha256()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in sorted(members.items()):
            content = member.data
            if member.file is not None:
                content = read(member.file, root if name in own else None, member.size)
            if name in own:
                digest = hashlib.sha256(content).hexdigest()
                whole.update(f"{name}\0{member.mode:o}\0{digest}\n".encode())
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3  # Unix: the modes below mean something
            info.external_attr = (0o100000 | member.mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue(), whole.hexdigest() if own else ""
