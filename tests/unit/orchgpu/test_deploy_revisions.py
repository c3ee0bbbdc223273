"""Revisions and locks over as much of S3 as they use: numbers, what is kept, who may go on."""

import io
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.functions import Code
from fdl.plan.plan import Plan
from fdl.plan.resources import DeployTarget
from fdl.written import written
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.revisions import Locks, Revisions
from orchgpu.deploy.revisions import REVISIONS_KEPT, Revision, chosen, revision_of

PLACE = DeployTarget(account="000000000000", region="us-east-1", local=True)
TEXT = "functions: {aws: [{lambda: {name: f, init_script: a.sh, output: [{path: out}]}, gpu: {}, job: {input: {path: inn}}}]}"  # noqa: E501


class Bucket:
    """One bucket of S3 with conditional writes."""

    #: Of a client: its service and operations.
    meta = SimpleNamespace(
        service_model=SimpleNamespace(service_name="s3"),
        method_to_api_mapping={"put_object": "PutObject", "delete_object": "DeleteObject"},
    )

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    def put_object(self, *, Key: str, Body: bytes, **conditions: str) -> None:  # noqa: N803
        standing = self.bodies.get(Key)
        taken = "IfNoneMatch" in conditions and standing is not None
        other = "IfMatch" in conditions and conditions["IfMatch"] != self._etag(Key)
        if taken or other:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
        self.bodies[Key] = Body

    def get_object(self, *, Key: str, **_: str) -> dict[str, Any]:  # noqa: N803
        if Key not in self.bodies:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return {"Body": io.BytesIO(self.bodies[Key]), "ETag": self._etag(Key)}

    def delete_object(self, *, Key: str, **_: str) -> None:  # noqa: N803
        self.bodies.pop(Key, None)

    def get_paginator(self, _: str) -> "Bucket":
        return self

    def paginate(self, *, Prefix: str, **_: str) -> list[dict[str, Any]]:  # noqa: N803
        return [{"Contents": [{"Key": k} for k in self.bodies if k.startswith(Prefix)]}]

    def _etag(self, key: str) -> str:
        return f'"{hash(self.bodies.get(key))}"'


def revision(number: int = 1, sha256: str = "0" * 64) -> Revision:
    (function,) = parse(TEXT).functions.aws
    wanted = desired(function, PLACE, Code(sha256=sha256, size=1), Budget())
    return revision_of(wanted, number=number, at_s=5.0, note="", plan=Plan(), package=sha256)


@pytest.mark.parametrize(
    ("number", "note", "summary", "changes"),
    [
        (1, "", ("+ bucket in", "+ queue f-jobs"), "first deploy"),
        (2, "", ("~ function f: memory_mib 512 → 1024", "+ queue x"), "function f: memory_mib"),
        (3, "rollback to 1", ("~ function f: memory_mib 1024 → 512",), "rollback to 1"),
    ],
)
def test_a_revision_has_one_line_for_people(
    number: int, note: str, summary: tuple[str, ...], changes: str
) -> None:
    found = replace(revision(number), note=note, summary=summary).changes
    assert found.startswith(changes)
    assert "+" not in found


def test_the_lines_of_the_file_come_back_with_a_revision() -> None:
    lines = written(parse(TEXT), "f")
    assert lines is not None
    revisions = Revisions(AwsClient(Bucket()), PLACE)
    revisions.write(replace(revision(), written=lines), b"zip")
    (found,) = revisions.of("f")
    assert found.written == lines


def test_a_revision_comes_back_as_it_was() -> None:
    revisions = Revisions(AwsClient(Bucket()), PLACE)
    kept = revisions.write(revision(), b"zip")
    (found,) = revisions.of("f")
    assert found == kept == revision()
    assert revisions.package(found) == b"zip"
    (function,) = parse(TEXT).functions.aws
    again = desired(function, PLACE, Code(sha256="0" * 64, size=1), Budget())
    assert found.wanted().resources == again.resources
    assert Revisions(AwsClient(Bucket()), PLACE).of("f") == ()


def test_a_number_is_never_given_twice() -> None:
    revisions = Revisions(AwsClient(Bucket()), PLACE)
    deploys = [replace(revision(1), deployed_at_s=float(second)) for second in range(3)]
    numbers = [revisions.write(one, None).number for one in deploys]
    assert numbers == [1, 2, 3]


def test_the_oldest_go_with_their_packages() -> None:
    bucket = Bucket()
    revisions = Revisions(AwsClient(bucket), PLACE)
    for number in range(1, REVISIONS_KEPT + 3):
        revisions.write(revision(number, sha256=f"{number:064d}"), b"zip")
    kept = revisions.of("f")
    assert [r.number for r in kept] == list(range(3, REVISIONS_KEPT + 3))
    assert len([key for key in bucket.bodies if key.endswith(".zip")]) == REVISIONS_KEPT
    revisions.forget("f")
    assert bucket.bodies == {}


def test_which_one_a_rollback_means() -> None:
    kept = tuple(revision(number) for number in (4, 5, 6))
    assert chosen("f", kept, None).number == 5
    assert chosen("f", kept, 4).number == 4
    for known, number, said in (
        (kept, 9, "kept are 4, 5, 6"),
        (kept[:1], None, "only one"),
        ((), None, "not deployed here"),
    ):
        with pytest.raises(AppError, match=said) as caught:
            chosen("f", known, number)
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_lock_is_held_by_one_and_freed() -> None:
    bucket = Bucket()
    locks = Locks(AwsClient(bucket), PLACE)
    with locks.held("inn"):
        assert list(bucket.bodies) == ["locks/inn"]
    with locks.held("inn"):
        pass
    assert bucket.bodies == {}


def test_a_lock_of_a_dead_deploy_expires() -> None:
    bucket = Bucket()
    bucket.bodies["locks/inn"] = json.dumps({"token": "dead", "until_s": time.time() - 1}).encode()
    bucket.bodies["locks/out"] = b"nonsense"
    with Locks(AwsClient(bucket), PLACE).held("inn"), Locks(AwsClient(bucket), PLACE).held("out"):
        assert json.loads(bucket.bodies["locks/inn"])["token"] != "dead"
    assert bucket.bodies == {}


def test_a_lock_that_stays_held_is_a_conflict() -> None:
    locks = Locks(AwsClient(Bucket()), PLACE, tries=2, pause_s=0.0)
    with (
        locks.held("inn"),
        pytest.raises(AppError, match="another deploy is changing inn") as caught,
        locks.held("inn"),
    ):
        pass
    assert caught.value.code is ErrorCode.CONFLICT
