"""What an S3 request is about: bucket, key, and the query."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from aiohttp import web

from local_cloud.model.errors import refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The path and query of one request."""

    bucket: str  #: empty for the service itself
    key: str  #: empty for the bucket itself
    query: dict[str, str]


def target_of(request: web.BaseRequest) -> Target:
    """Take the path apart as it was sent: keys may hold `..`, `//` and any character.

    Raises InvalidURI for a path that is not UTF-8.
    """
    path, _, query = request.raw_path.partition("?")
    bucket, _, key = path.lstrip("/").partition("/") if path.strip("/") else ("", "", "")
    try:
        return Target(
            bucket=urllib.parse.unquote(bucket, errors="strict"),
            key=urllib.parse.unquote(key, errors="strict"),
            query=dict(urllib.parse.parse_qsl(query, keep_blank_values=True)),
        )
    except UnicodeDecodeError:
        raise refused("InvalidURI", "Couldn't parse the specified URI.") from None


def number(query: dict[str, str], name: str, default: int) -> int:
    """A whole number ≥ 0 of the query. Raises InvalidArgument."""
    shown = query.get(name, str(default))
    if not shown.isdigit():
        raise refused("InvalidArgument", f"Provided {name} not an integer or within integer range")
    return int(shown)
