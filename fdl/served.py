"""`http:`: the URL of a function, by which programs with rights in IAM submit jobs."""

from __future__ import annotations

from dataclasses import dataclass

#: Of a Lambda function.
NAME_CHARS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The `http:` block. On AWS a Function URL; elsewhere the console serves every function."""

    enabled: bool = True
    origins: tuple[str, ...] = ()  #: of web pages that may call it; () = none, CORS is off


def http_name(function: str) -> str:
    """The name of the Lambda function behind the URL of a function."""
    return f"{function}-http"
