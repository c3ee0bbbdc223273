"""Functions and HTTP: `http:`, a URL for programs; `service:`, the URL that runs a function."""

from __future__ import annotations

from dataclasses import dataclass

#: Of a Lambda function.
NAME_CHARS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The `http:` block. On AWS a Function URL; elsewhere the console serves every function."""

    enabled: bool = True
    origins: tuple[str, ...] = ()  #: of web pages that may call it; () = none, CORS is off


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The `service:` block: an HTTP service that runs the function where there is no Lambda."""

    url: str  #: nothing in it is secret


def http_name(function: str) -> str:
    """The name of the Lambda function behind the URL of a function."""
    return f"{function}-http"
