"""Every failure on the way to AWS leaves the adapter as an AppError."""

from __future__ import annotations

import aiohttp
import pytest
from botocore.exceptions import EndpointConnectionError, IncompleteReadError, ReadTimeoutError

from corekit.errors import AppError
from orchgpu.adapters.aws.api import translated


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ClientPayloadError("the body broke off"),
        aiohttp.ServerDisconnectedError(),
        ConnectionResetError("reset"),
        IncompleteReadError(actual_bytes=1, expected_bytes=2),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
    ],
)
def test_a_cloud_that_goes_away_in_a_call_is_unavailable(error: Exception) -> None:
    with pytest.raises(AppError) as caught, translated("s3:GetObject b/k"):
        raise error
    assert caught.value.retryable
    assert caught.value.message.startswith("s3:GetObject b/k")
