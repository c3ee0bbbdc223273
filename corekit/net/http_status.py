"""The HTTP status of each error code, in every HTTP API of ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.errors import ErrorCode

STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.INVALID: 400,
    ErrorCode.DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.IMPOSSIBLE: 422,
    ErrorCode.EXHAUSTED: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.TIMEOUT: 504,
}
