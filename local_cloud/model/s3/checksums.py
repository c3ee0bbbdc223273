"""S3's checksums of objects and parts, and the combination of those of parts. Pure.

Source: S3 user guide, "Checking object integrity". A multipart object has either one checksum of
all its bytes (FULL_OBJECT, which only CRCs allow) or a checksum of its parts' checksums, followed
by their number (COMPOSITE).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anycrc

from local_cloud.model.errors import refused

FULL_OBJECT, COMPOSITE = "FULL_OBJECT", "COMPOSITE"
DEFAULT = "crc64nvme"  #: computed by S3 when a client sends no checksum (since December 2024)
#: name in anycrc's catalogue and bytes of the value
_CRCS = {"crc32": ("CRC32", 4), "crc32c": ("CRC32C", 4), "crc64nvme": ("CRC64-NVME", 8)}
ALGORITHMS = (*_CRCS, "sha1", "sha256")


class Digest(Protocol):
    """A checksum over a stream of bytes."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, algorithm: str) -> None:
        name, self._size = _CRCS[algorithm]
        self._model: Any = anycrc.Model(name)
        self._value = self._model.calc(b"")

    def update(self, data: bytes, /) -> None:
        self._value = self._model.calc(data, self._value)

    def digest(self) -> bytes:
        return int(self._value).to_bytes(self._size, "big")


def algorithm_of(text: str) -> str:
    """The algorithm's name in lower case. Raises InvalidRequest for an unknown one."""
    name = text.lower()
    if name not in ALGORITHMS:
        raise refused("InvalidRequest", "Checksum algorithm provided is unsupported. " + _ADVICE)
    return name


_ADVICE = "Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"


def new_digest(algorithm: str) -> Digest:
    """A digest without data yet; `algorithm` is one of ALGORITHMS."""
    if algorithm in _CRCS:
        return _Crc(algorithm)
    return hashlib.new(algorithm, usedforsecurity=False)


def encoded(digest: Digest) -> str:
    """The value in base64, as in headers."""
    return base64.b64encode(digest.digest()).decode()


def compare(algorithm: str, given: str, computed: str) -> None:
    """Compare a client's checksum with that of the bytes. Raises BadDigest."""
    if given != computed:
        message = f"The {algorithm.upper()} you specified did not match the calculated checksum."
        raise refused("BadDigest", message)


def type_of_upload(algorithm: str, wanted: str) -> str:
    """FULL_OBJECT or COMPOSITE for a multipart upload; empty = the algorithm's default.

    Raises InvalidRequest for a type that the algorithm does not have.
    """
    kind = wanted.upper() or (FULL_OBJECT if algorithm == DEFAULT else COMPOSITE)
    if kind not in (FULL_OBJECT, COMPOSITE):
        raise refused("InvalidRequest", f"Value for x-amz-checksum-type header is invalid: {kind}")
    if (kind == FULL_OBJECT and algorithm not in _CRCS) or (
        kind == COMPOSITE and algorithm == DEFAULT
    ):
        text = f"The {kind} checksum type cannot be used with the {algorithm} checksum algorithm."
        raise refused("InvalidRequest", text)
    return kind


def of_parts(algorithm: str, kind: str, parts: Sequence[tuple[str, int]]) -> str:
    """The object's checksum from its parts' (value, bytes); of type `kind`."""
    if kind == COMPOSITE:
        digest = new_digest(algorithm)
        for value, _ in parts:
            digest.update(base64.b64decode(value))
        return f"{encoded(digest)}-{len(parts)}"
    name, size = _CRCS[algorithm]
    model: Any = anycrc.Model(name)
    whole = model.calc(b"")
    for value, part_bytes in parts:
        whole = model.combine(whole, int.from_bytes(base64.b64decode(value), "big"), part_bytes)
    return base64.b64encode(int(whole).to_bytes(size, "big")).decode()


def headers(checksums: Mapping[str, str], kind: str) -> dict[str, str]:
    """The headers of checksums; empty without any."""
    values = {f"x-amz-checksum-{name}": value for name, value in checksums.items()}
    return {**values, "x-amz-checksum-type": kind or FULL_OBJECT} if values else {}
