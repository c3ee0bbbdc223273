"""What the orchestrator's clients leave out of botocore's calls changes no answer."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.endpoint_provider import EndpointProvider
from botocore.utils import parse_timestamp

from contract.aws.clients import service_descriptions
from orchgpu.adapters.aws.lean import ENDPOINT_RULES, read_timestamp, with_named_parameters


@pytest.mark.parametrize(
    "text",
    [
        "Thu, 26 Nov 2026 23:12:12 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "2026-11-26T23:12:12.123Z",
        "2026-11-26T23:12:12Z",
        "2026-11-26T23:12:12+02:00",
        "20261126T231212Z",
        "1795734732",
        1795734732,
        1795734732.25,
    ],
)
def test_a_timestamp_is_the_one_that_botocore_reads(text: object) -> None:
    assert read_timestamp(text) == parse_timestamp(text)
    assert read_timestamp(text).isoformat() == parse_timestamp(text).isoformat()


def test_what_is_no_timestamp_raises_as_in_botocore() -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        read_timestamp("Thu, 99 Nov 2026")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"Endpoint": "http://127.0.0.1:4566", "ForcePathStyle": True},
        {"UseDualStack": True},
        {"UseFIPS": True},
        {"Accelerate": True},
        {"Bucket": "with.dots"},
        {"Bucket": "arn:aws:s3:eu-west-1:123456789012:accesspoint:mine"},
        {"Region": "cn-north-1"},
    ],
)
def test_an_endpoint_is_the_one_of_all_parameters(more: dict[str, object]) -> None:
    loader: Any = service_descriptions()
    rules = loader.load_service_model("s3", ENDPOINT_RULES)
    partitions = loader.load_data("partitions")
    lean = with_named_parameters(rules)
    assert set(rules["parameters"]) - set(lean["parameters"]) == {"CopySource", "Key", "Prefix"}
    given = {"Bucket": "bucket", "Region": "eu-west-1", "UseFIPS": False, "UseDualStack": False}
    given |= {"Accelerate": False, "ForcePathStyle": False, **more}
    whole = EndpointProvider(rules, partitions).resolve_endpoint(**given, Key="a/b", Prefix="a/")
    found = EndpointProvider(lean, partitions).resolve_endpoint(**given)
    assert (found.url, found.properties, found.headers) == (
        whole.url,
        whole.properties,
        whole.headers,
    )
