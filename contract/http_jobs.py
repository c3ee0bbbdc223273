"""Jobs of HTTP requests: what both servers of `/v1` have, the console and a function's own.

An input's name begins with an id of the function and the idempotency key, so a request that is
repeated, on whichever server, finds the input of the first one.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from urllib.parse import quote

#: Begins every path.
PREFIX = "/v1/"
IDEMPOTENCY_KEY = "Idempotency-Key"
_KEY_CHARS_MAX = 255
#: The id stands before it in the name of a file, which has 255 bytes at most.
NAME_BYTES_MAX = 200
#: The longest wait of one request: proxies end quiet ones after a minute.
WAIT_S_MAX = 50.0
#: A larger output is a link only.
INLINE_BYTES_MAX = 64 * 1024
#: The state of a job that has no result, for a server that cannot ask the scheduler.
LIVE = "LIVE"
#: Metadata of an input: the sha256 of its content.
DIGEST = "orchgpu-sha256"
_UNKNOWN_TYPE = "application/octet-stream"


def key_fault(key: str) -> str:
    """The reason against an idempotency key; "" = it is one."""
    if 0 < len(key) <= _KEY_CHARS_MAX and key.isascii() and key.isprintable():
        return ""
    return f"{IDEMPOTENCY_KEY} must have 1 to {_KEY_CHARS_MAX} printable ASCII characters"


def name_fault(name: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """The reason against the name of a file; "" = it is one."""
    is_path = name in ("", ".", "..") or "/" in name or "\\" in name
    if is_path or not name.isprintable() or len(name.encode()) > bytes_max:
        return f"{name!r:.80} is not the name of a file of at most {bytes_max} bytes"
    return ""


def suffix_fault(function: str, name: str, suffixes: Sequence[str]) -> str:
    """The reason against the name of an input of the function; "" = it is taken."""
    if not suffixes or name.endswith(tuple(suffixes)):
        return ""
    return f"{name}: {function} takes only {', '.join(suffixes)} and would ignore it"


def request_id(function: str, key: str) -> str:
    """The beginning of an input's name: the same for requests with the same key."""
    return hashlib.sha256(f"{function}\0{key}".encode()).hexdigest()[:32]


def another_fault(stored: str) -> str:
    """The reason against a request whose key another one had; `stored`: the key of its input."""
    text = f"the {IDEMPOTENCY_KEY} was used for another body, name or parameters; the input is "
    return f"{text}{stored}: give a new key, or repeat that request"


def ids_folder(prefix: str, request: str) -> str:
    """Begins the keys of the inputs of an id, below the prefix of a function's inputs."""
    return key_below(prefix, f"{request}-")


def plain_name(suffixes: Sequence[str]) -> str:
    """The name of an input whose caller gives none: one that the function takes."""
    return f"input{next(iter(suffixes), '')}"


def input_name(request: str, name: str | None, suffixes: Sequence[str]) -> str:
    """The name of an input; without one of the caller's it has one that the function takes."""
    return f"{request}-{name or plain_name(suffixes)}"


def key_below(prefix: str, name: str) -> str:
    """The key of an object below a prefix without slashes at its ends; "" = the bucket itself."""
    return f"{prefix}/{name}" if prefix else name


def undated_version(etag: str, modified: str) -> str:
    """The version of an object in a bucket without versions. `modified`: ISO 8601, with a zone."""
    return f"{etag}@{modified}"


def is_below(bucket: str, key: str, places: Iterable[tuple[str, str]]) -> bool:
    """Whether an object lies below one of the places, each a bucket and a prefix."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        return False  # the runner writes no such key; a server may read it as another one
    below = ((where, key_below(prefix, "")) for where, prefix in places)
    return any(bucket == where and key.startswith(folder) for where, folder in below)


def output_names(objects: Sequence[tuple[str, str]]) -> list[str]:
    """The names of a job's outputs, each unique, by their buckets and keys."""
    last = Counter(PurePosixPath(key).name for _, key in objects)
    names = ((PurePosixPath(key).name, f"{bucket}/{key}") for bucket, key in objects)
    return [name if last[name] == 1 else whole for name, whole in names]


def output_link(job: str, name: str) -> str:
    """The path of an output."""
    return f"{PREFIX}jobs/{job}/outputs/{quote(name)}"


def type_of(key: str) -> str:
    """The media type by the ending of a name; that of a compressed file names no content."""
    kind, encoding = mimetypes.guess_type(PurePosixPath(key).name, strict=True)
    return kind if kind is not None and encoding is None else _UNKNOWN_TYPE


def inlined(content: bytes) -> tuple[str, str]:
    """The fields `content` and `encoding` of an output."""
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode(), "base64"
