"""One call of S3: its request, the bucket and key that it names, and the cloud that answers."""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import refused
from local_cloud.model.s3.bucket import Bucket
from local_cloud.server.bodies import FileBodies
from local_cloud.server.context import Context
from local_cloud.server.signatures import ChunkSigner


@dataclass(slots=True, kw_only=True)
class Call:
    """One request, with its path and query."""

    context: Context
    request: web.BaseRequest
    bucket_name: str  #: empty for the service itself
    key: str  #: empty for the bucket itself
    query: dict[str, str]
    always: dict[str, str] = field(default_factory=dict)  #: headers that every answer has
    chunks: ChunkSigner | None = None  #: the signer of the body's chunks

    @property
    def cloud(self) -> Cloud:
        return self.context.cloud

    @property
    def bodies(self) -> FileBodies:
        return self.context.bodies

    @property
    def now_s(self) -> float:
        return self.context.now_s()

    @property
    def headers(self) -> Mapping[str, str]:
        return self.request.headers

    @property
    def bucket(self) -> Bucket:
        """Raises NoSuchBucket."""
        return self.cloud.bucket(self.bucket_name)


def call_of(context: Context, request: web.BaseRequest, bucket: str = "") -> Call:
    """Take the path apart as it was sent: keys may hold `..`, `//` and any character.

    `bucket` is the one that the host names, empty when the path holds it. Raises InvalidURI for a
    path that is not UTF-8.
    """
    path, _, query = request.raw_path.partition("?")
    if bucket:
        key = path.removeprefix("/")
    else:
        bucket, _, key = path.lstrip("/").partition("/") if path.strip("/") else ("", "", "")
    try:
        return Call(
            context=context,
            request=request,
            bucket_name=urllib.parse.unquote(bucket, errors="strict"),
            key=urllib.parse.unquote(key, errors="strict"),
            query=dict(urllib.parse.parse_qsl(query, keep_blank_values=True)),
        )
    except UnicodeDecodeError:
        raise refused("InvalidURI", "Couldn't parse the specified URI.") from None


def bucket_of_host(request: web.BaseRequest, region: str, names: Collection[str]) -> str:
    """The bucket of virtual-hosted addressing, `BUCKET.localhost` or `BUCKET.s3.localhost`.

    `names` are the server's additional host names. Empty for path-style addressing.
    """
    host = request.headers.get("Host", "").rpartition("]")[2].partition(":")[0].lower()
    for name in ("localhost", *names):
        for service in (f"s3.{region}.{name}", f"s3.{name}", name):
            if host == service:
                return ""
            if host.endswith(f".{service}"):
                return host.removesuffix(f".{service}")
    return ""


def region_of(request: web.BaseRequest) -> str:
    """The region in the scope of a request's signature, version 4; empty without one."""
    scope = request.headers.get("Authorization", "").partition("Credential=")[2]
    scope = scope.partition(",")[0] or request.query.get("X-Amz-Credential", "")
    fields = scope.split("/")
    return fields[-3] if len(fields) >= 5 else ""


def number(query: Mapping[str, str], name: str, default: int) -> int:
    """An integer ≥ 0 of the query. Raises InvalidArgument."""
    shown = query.get(name, str(default))
    if not shown.isdecimal():
        raise refused("InvalidArgument", f"Provided {name} not an integer or within integer range")
    return int(shown)
