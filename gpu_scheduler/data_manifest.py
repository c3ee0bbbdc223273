"""The manifest of a data set: its files, each with a pin of its content. Pure.

    sha256:9f86d081…  model.onnx
    git:83baae61…  config.json
    etag:5d41402a…-12  shards/part-0.bin

The digest of a set is the SHA-256 of these lines, sorted by path. A `sha256` pin, and a `git` one
(of a blob), are computed from the bytes that arrived; an `etag` and a `version` are S3's names of
one content, and each read is conditional on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Checked, Meta, Value

FILES_MAX = 20_000  #: of one set
PATH_CHARACTERS_MAX = 900


def _path_problem(text: str) -> str | None:
    parts = PurePosixPath(text).parts
    is_inside = bool(parts) and not text.startswith("/") and ".." not in parts
    is_plain = text == "/".join(parts) and text.isprintable() and len(text) <= PATH_CHARACTERS_MAX
    return None if is_inside and is_plain else f"{text!r:.100} is not a path inside of a folder"


class File(Checked):
    """One file of a set."""

    path: Annotated[str, Meta(extra={"problem": _path_problem})]  #: relative, with slashes
    pin: str  #: `sha256:<hex>`, `git:<hex>`, `etag:<etag>` or `version:<id>`
    bytes: Annotated[int, Meta(ge=0)] | None = None  #: None: found when it is read


class Manifest(Value):
    """The files of a set, by path."""

    files: tuple[File, ...]

    @property
    def text(self) -> str:
        return "".join(f"{one.pin}  {one.path}\n" for one in self.files)

    @property
    def bytes(self) -> int | None:
        """Of all files; None: not known."""
        sizes = [one.bytes for one in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def only_file(self) -> str:
        """The path of a set of one file; "" for any other."""
        return self.files[0].path if len(self.files) == 1 else ""


def manifest_of(source: str, files: Iterable[File]) -> Manifest:
    """The files in order. Raises INVALID for none, too many, or paths that exclude each other."""
    ordered = tuple(sorted(files, key=lambda one: one.path))
    if not ordered:
        raise AppError(ErrorCode.NOT_FOUND, f"{source} has no file")
    if len(ordered) > FILES_MAX:
        raise invalid(f"{source} has {len(ordered)} files; a data set has at most {FILES_MAX}")
    paths = {one.path for one in ordered}
    for path in paths:
        for folder in PurePosixPath(path).parents:
            if str(folder) in paths:
                raise invalid(f"{source} has a file and a folder at {str(folder)!r:.100}")
    return Manifest(files=ordered)


def digest_of(manifest: Manifest) -> str:
    """The digest of a set."""
    return hashlib.sha256(manifest.text.encode()).hexdigest()


def changed_text(source: str, declared: str, manifest: Manifest) -> str:
    """The reason why a source that has other content than was declared is refused."""
    found = digest_of(manifest)
    size = "" if manifest.bytes is None else f", {manifest.bytes} bytes"
    return (
        f"{source} has other content than was declared: its manifest is sha256:{found[:12]}"
        f" ({len(manifest.files)} files{size}), not sha256:{declared[:12]}; deploy the function"
        " again to declare what is there now"
    )


# ---------------------------------------------------------------------- files by their source


def s3_files(pages: Iterable[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, File]]:
    """The object of a key, else the objects below it as a folder, each with its key.

    `pages`: the answers of ListObjectsV2 for this prefix.
    """
    folder = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    for one in (one for page in pages for one in page.get("Contents", ())):
        key, etag = one["Key"], f"etag:{one['ETag'].strip(chr(34))}"
        if key == prefix and prefix != folder:
            yield key, File(path=_last(key), pin=etag, bytes=one["Size"])
            return
        inside = key.removeprefix(folder)
        if key.startswith(folder) and inside and not inside.endswith("/"):
            yield key, File(path=inside, pin=etag, bytes=one["Size"])


def s3_version(key: str, version: str, size_bytes: int | None = None) -> dict[str, File]:
    """The file of one version of an object, by its key."""
    return {key: File(path=_last(key), pin=f"version:{version}", bytes=size_bytes)}


def https_file(source: str, size_bytes: int | None = None) -> File:
    """The only file of such a source: its digest is in the text, so nothing is read."""
    url, _, sha256 = source.partition("#sha256=")
    name = _last(unquote(urlsplit(url).path)) or "file"
    return File(path=name, pin=f"sha256:{sha256}", bytes=size_bytes)


class _Stored(msgspec.Struct):
    """The large file for which a repository has a pointer."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=0)]


class _Named(msgspec.Struct, rename={"path": "rfilename", "blob": "blobId"}):
    """A file of a repository."""

    path: str
    blob: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]  #: git's hash of it, or of the pointer
    size: Annotated[int, Meta(ge=0)]
    lfs: _Stored | None = None


class HubListing(msgspec.Struct):
    """The hub's answer about one revision of a repository (`?blobs=true`)."""

    sha: Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]  #: the commit
    siblings: tuple[_Named, ...]


def hub_files(found: HubListing, path: str) -> Iterator[tuple[str, File]]:
    """The file at a path, else the files below it, each with its path in the repository."""
    for one in found.siblings:
        pin, size_bytes = f"git:{one.blob}", one.size
        if one.lfs is not None:
            pin, size_bytes = f"sha256:{one.lfs.sha256}", one.lfs.size
        if path and one.path == path:
            yield one.path, File(path=_last(path), pin=pin, bytes=size_bytes)
        elif not path or one.path.startswith(f"{path}/"):
            inside = one.path.removeprefix(f"{path}/") if path else one.path
            yield one.path, File(path=inside, pin=pin, bytes=size_bytes)


class _Layer(msgspec.Struct):
    """A blob of an artifact."""

    digest: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=0)]
    annotations: Mapping[str, str] = {}


class ArtifactManifest(msgspec.Struct):
    """The manifest of an OCI artifact."""

    layers: tuple[_Layer, ...]


#: Annotations of layers: the path, as `oras push` writes it, and the mark of a packed folder.
_TITLE, _PACKED = "org.opencontainers.image.title", "io.deis.oras.content.unpack"


def artifact_files(found: ArtifactManifest) -> Iterator[File]:
    """The files of an artifact. Raises INVALID for an image, and for packed folders."""
    for one in found.layers:
        path = one.annotations.get(_TITLE)
        if path is None:
            raise invalid("it has a layer without a name, as an image has")
        if one.annotations.get(_PACKED) == "true":
            raise invalid(f"{path!r:.100} is a packed folder; push its files")
        yield File(path=path, pin=one.digest, bytes=one.size)


def _last(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]
