"""The entry point: `lambda_functions.http_api.handler.handle`.

The clients are shared by all requests of a warm environment, so they are made once, at import.
"""

from __future__ import annotations

import json
import os
import time
from typing import Protocol

from contract.record import JsonObject
from lambda_functions.gpu_runner.storage.s3 import make_client
from lambda_functions.http_api.jobs import Jobs, Served
from lambda_functions.http_api.routes import answer

#: Of Lambda's timeout, for what follows a wait.
_RESERVE_S = 5.0
JOBS = Jobs(
    served=Served.of(os.environ["ORCHGPU_HTTP"]),
    s3=make_client(
        os.environ["ORCHGPU_ACCOUNT"], json.loads(os.environ.get("ORCHGPU_BUCKET_OWNERS") or "{}")
    ),
    signer=make_client(signature_version="s3v4"),
)


class Context(Protocol):
    """The part of Lambda's context object in use."""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends the function."""
        ...  # pragma: no cover


def handle(event: JsonObject, context: Context) -> JsonObject:
    """One request of the Function URL."""
    left_s = context.get_remaining_time_in_millis() / 1000.0
    return answer(JOBS, event, time.monotonic() + left_s - _RESERVE_S)
