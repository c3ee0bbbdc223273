"""The ways of a function's code: in the call, through a bucket, in a layer, in an image."""

from typing import Any

import pytest

from fdl.plan.functions import DIRECT_BYTES_MAX, HANDLER, Code
from fdl.plan.resources import FunctionResource, Package
from tests.unit.fdl.definitions import AWS, only, resources

SHA = "0" * 64
STATE = "orchgpu-state-123456789012-eu-west-1-an"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/blast:1"
TEXT = "functions: {aws: [{lambda: {name: f, input: [{path: inn}], %s}}]}"


def made(keys: str, size: int = 1) -> tuple[FunctionResource, list[Any]]:
    found = resources(TEXT % keys, AWS, code=Code(sha256=SHA, size=size))
    return only(FunctionResource, found), [r for r in found if isinstance(r, Package)]


def test_a_small_package_is_sent_with_the_call() -> None:
    function, packages = made("init_script: a.sh", DIRECT_BYTES_MAX)
    assert (function.handler, function.package, function.code_at) == (HANDLER, SHA, ())
    assert packages == []


@pytest.mark.parametrize(
    ("keys", "bucket"),
    [("init_script: a.sh", STATE), ("init_script: a.sh, deployment: {bucket: mine}", "mine")],
)
def test_a_large_package_goes_through_a_bucket(keys: str, bucket: str) -> None:
    function, packages = made(keys, DIRECT_BYTES_MAX + 1)
    assert function.code_at == (bucket, f"packages/{SHA}.zip")
    assert packages == [Package(bucket=bucket, sha256=SHA)]


def test_layers_are_the_zip_functions() -> None:
    layer = "arn:aws:lambda:eu-west-1:123456789012:layer:rcuda:3"
    function, _ = made(f"init_script: a.sh, layers: ['{layer}']")
    assert (function.layers, function.handler) == ((layer,), HANDLER)


def test_an_image_of_ecr_brings_its_own_code_and_command() -> None:
    function, packages = made(f"runtime: image, container: {{image: '{IMAGE}'}}", 2**30)
    assert (function.image, function.handler, function.package) == (IMAGE, "", "")
    assert (function.runtime, function.layers, packages) == ("", (), [])
