"""The compiler of kernel sources for an NVIDIA architecture: NVRTC, without GPU and driver.

It makes SASS, not PTX: drivers refuse PTX of a newer NVRTC, while every driver for the card loads
SASS of its architecture. Results are cached under a hash of their inputs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

from operations.kernels.cuda import to_cuda
from remote_gpu.wire.errors import OpCode, OpFailed, invalid

_OPTIONS = ("--device-as-default-execution-space", "--std=c++17", "--extra-device-vectorization")
_LOG_CHARS_MAX = 1500  #: of a compiler's log, from its beginning
#: Of a kernel in the log of `--ptxas-options=-v`.
_KERNEL_LOG = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<spilled>\d+) bytes spill stores"
    r".*?Used (?P<registers>\d+) registers[^\n]*?(?:(?P<shared>\d+) bytes smem)?[^\n]*\n",
    re.DOTALL,
)
_HASH_BYTES = hashlib.sha256().digest_size


def compile_source(source: str, architecture: str, cache: Path | None = None) -> bytes:
    """A CUBIN for `architecture` (`sm_90`) of a checked source (`Source.text`).

    `cache`: folder of earlier results; may be removed at any time. Raises OpFailed: EINVAL with the
    line, ENOTSUP for an unknown architecture.
    """
    code = to_cuda(source)
    inputs = "\0".join((_version(), architecture, *_OPTIONS, code))
    path = cache and cache / f"{hashlib.sha256(inputs.encode()).hexdigest()}.cubin"
    if path is not None and (kept := _read(path)) is not None:
        return kept
    if architecture not in architectures():
        known = ", ".join(architectures())
        message = f"NVRTC {_version()} compiles for {known}, not for {architecture}"
        raise OpFailed(OpCode.ENOTSUP, message)
    image, _ = _compile(code, architecture)
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk costs the next lease 60 ms
            _write(path, image)
    return image


@functools.cache
def architectures() -> tuple[str, ...]:
    """The architectures of the installed NVRTC."""
    count = _checked(nvrtc.nvrtcGetNumSupportedArchs())
    numbers = _checked(nvrtc.nvrtcGetSupportedArchs())[:count]
    return tuple(f"sm_{number}" for number in numbers)


@functools.cache
def _version() -> str:
    major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFigures:
    """The registers of a work-item and the memory of a group that a kernel takes."""

    kernel: str
    architecture: str
    registers: int
    spilled_bytes: int  #: of registers, stored in memory instead
    shared_bytes: int  #: declared in the kernel


def figures_of(source: str, architecture: str) -> list[KernelFigures]:
    """The figures of every kernel of a source. Raises OpFailed as `compile_source` does."""
    _, log = _compile(to_cuda(source), architecture, "--ptxas-options=-v")
    return [
        KernelFigures(
            kernel=found["kernel"],
            architecture=architecture,
            registers=int(found["registers"]),
            spilled_bytes=int(found["spilled"]),
            shared_bytes=int(found["shared"] or 0),
        )
        for found in _KERNEL_LOG.finditer(log)
    ]


def _compile(code: str, architecture: str, *more: str) -> tuple[bytes, str]:
    program = _checked(nvrtc.nvrtcCreateProgram(code.encode(), b"graph.cu", 0, [], []))
    try:
        options = [
            f"--gpu-architecture={architecture}".encode(),
            *(o.encode() for o in (*_OPTIONS, *more)),
        ]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise invalid(f"the source does not build: {_errors(program)}")
        _checked((result,))
        image = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, image))
        return image, _log(program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _errors(program: Any) -> str:
    """The compiler's errors with their lines: `line 3: error: …`."""
    text = _log(program)
    errors = [
        re.sub(r"^\w+\((\d+)\): ", r"line \1: ", line)
        for line in text.splitlines()
        if re.search(r"\): (catastrophic )?error", line)
    ]
    return ("; ".join(errors) or text.strip())[:_LOG_CHARS_MAX]


def _log(program: Any) -> str:
    log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a call that must not fail. Raises OpFailed(EIO)."""
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise OpFailed(OpCode.EIO, f"NVRTC failed: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    image = data[_HASH_BYTES:]
    return image if hashlib.sha256(image).digest() == data[:_HASH_BYTES] else None


def _write(path: Path, image: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"new-{secrets.token_hex(8)}")
    try:
        new.write_bytes(hashlib.sha256(image).digest() + image)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
