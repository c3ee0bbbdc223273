"""Settings of a function that a deploy applies, changes and removes; botocore checks the calls."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.stub import ANY

from corekit.values import Value, replace
from fdl.plan.resources import FunctionResource
from fdl.plan.tags import own_tags
from orchgpu.adapters.aws.deploy.functions import LambdaFunctions
from orchgpu.adapters.aws.deploy.settings import configuration, emptied, resource_of
from tests.unit.orchgpu.test_deploy_settling import ACTIVE, AWS, FUNCTION, ZIP, Cloud

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/f:1"


def changed(**changes: Any) -> FunctionResource:
    return replace(FUNCTION, **changes)


class Updated(Value):
    """The calls of one update: their names, and their arguments by name."""

    arguments: dict[str, Any]


def update(before: FunctionResource, after: FunctionResource, *calls: str) -> Updated:
    """Update a function on AWS; `calls` are those expected beside the configuration's."""
    cloud, sent = Cloud("lambda"), dict[str, Any]()
    cloud.client.meta.events.register(
        "provide-client-params.lambda",
        lambda params, model, **_: sent.update({model.name: params}),
    )
    if "update_function_code" in calls:
        cloud.answers("update_function_code", ACTIVE).answers("get_function_configuration", ACTIVE)
    cloud.answers("update_function_configuration", ACTIVE)
    cloud.answers("get_function_configuration", ACTIVE)
    for call in calls:
        if "concurrency" in call:
            cloud.answers(call)
    LambdaFunctions(cloud.client, lambda: None, AWS).update(after, before, ZIP)
    cloud.stub.assert_no_pending_responses()
    cloud.client.close()
    return Updated(arguments=sent)


def test_reserved_concurrency_is_set_changed_and_removed() -> None:
    """Defect 4: a neighbour could use up all concurrency of the account."""
    made = update(FUNCTION, changed(reserved=5), "put_function_concurrency")
    assert made.arguments["PutFunctionConcurrency"]["ReservedConcurrentExecutions"] == 5
    update(changed(reserved=5), changed(reserved=7), "put_function_concurrency")
    update(changed(reserved=5), FUNCTION, "delete_function_concurrency")
    assert (
        "PutFunctionConcurrency" not in update(changed(reserved=5), changed(reserved=5)).arguments
    )


def test_reserved_concurrency_of_a_new_function() -> None:
    cloud = Cloud("lambda")
    cloud.refuses("get_function", "ResourceNotFoundException", "Function not found")
    cloud.answers("create_function", ACTIVE).answers("get_function_configuration", ACTIVE)
    cloud.stub.add_response(
        "put_function_concurrency", {}, {"FunctionName": "f", "ReservedConcurrentExecutions": 2}
    )
    functions = LambdaFunctions(cloud.client, lambda: None, AWS)
    functions.create(changed(reserved=2), ZIP)
    cloud.stub.assert_no_pending_responses()


def test_a_changed_architecture_is_applied() -> None:
    """Defect 7: only UpdateFunctionCode sets it, so the plan showed the change without end."""
    after = changed(architectures=("arm64",))
    made = update(FUNCTION, after, "update_function_code").arguments["UpdateFunctionCode"]
    assert made["Architectures"] == ["arm64"]
    assert "UpdateFunctionCode" not in update(after, after).arguments


def test_a_removed_command_of_an_image_is_cleared() -> None:
    """Defect 7: without ImageConfig AWS keeps the old one."""
    plain = changed(image=IMAGE, handler="", package="", runtime="")
    commanded = changed(image=IMAGE, handler="app.main", package="", runtime="")
    made = update(commanded, plain).arguments["UpdateFunctionConfiguration"]
    assert made["ImageConfig"] == {}
    made = update(plain, commanded).arguments["UpdateFunctionConfiguration"]
    assert made["ImageConfig"] == {"Command": ["app.main"]}


def test_a_removed_key_and_network_are_cleared() -> None:
    before = changed(kms_key=KEY, subnet_ids=("s",), security_group_ids=("g",))
    made = update(before, FUNCTION).arguments["UpdateFunctionConfiguration"]
    assert made["KMSKeyArn"] == ""
    assert made["VpcConfig"] == {"SubnetIds": [], "SecurityGroupIds": []}


def test_disk_key_log_and_traces_are_set() -> None:
    """Defect 11: /tmp had 512 MB, and nothing else could be set."""
    wanted = changed(
        storage_mib=2048,
        kms_key=KEY,
        log_format="JSON",
        log_level="INFO",
        log_system_level="WARN",
        log_group="team/gpu",
        tracing="Active",
    )
    made = configuration(wanted)
    assert made["EphemeralStorage"] == {"Size": 2048}
    assert (made["KMSKeyArn"], made["TracingConfig"]) == (KEY, {"Mode": "Active"})
    assert made["LoggingConfig"] == {
        "LogFormat": "JSON",
        "LogGroup": "team/gpu",
        "ApplicationLogLevel": "INFO",
        "SystemLogLevel": "WARN",
    }
    update(FUNCTION, wanted)  # botocore's model takes all of it
    answer = {
        "Configuration": {**ACTIVE, **made, "CodeSha256": ""},
        "Concurrency": {"ReservedConcurrentExecutions": 3},
        "Tags": {"createdby": "orchgpu", "aws:x": "y", "theirs": "z"},
    }
    seen = resource_of(answer, resolved=True)
    fields = ("storage_mib", "kms_key", "log_format", "log_level", "log_system_level", "log_group")
    for field in (*fields, "tracing"):
        assert getattr(seen, field) == getattr(wanted, field), field
    assert (seen.reserved, seen.tags) == (3, {"createdby": "orchgpu"})
    assert emptied(FUNCTION) == {}


@pytest.mark.parametrize(
    ("uri", "resolved", "seen"),
    [
        (IMAGE, "r/f@sha256:1", "r/f@sha256:1"),
        (IMAGE, None, IMAGE),
        ("r/f@sha256:2", "r/f@sha256:1", "r/f@sha256:2"),
    ],
)
def test_the_image_of_a_function_is_seen_with_its_digest(
    uri: str, resolved: str | None, seen: str
) -> None:
    """Defect 7: a moved tag was not noticed."""
    code = {"ImageUri": uri, **({"ResolvedImageUri": resolved} if resolved else {})}
    answer = {"Configuration": dict(ACTIVE), "Code": code}
    assert resource_of(answer, resolved=True).image == seen
    assert resource_of(answer, resolved=False).image == uri


def test_tags_of_others_are_not_ours() -> None:
    """Defect 11: tags of costs; an organisation's own tags are no difference."""
    found = {"createdby": "orchgpu", "orchgpu:tags": "team", "team": "a", "theirs": "b"}
    assert own_tags(found) == {"createdby": "orchgpu", "orchgpu:tags": "team", "team": "a"}


def test_a_removed_tag_is_removed_and_others_stay() -> None:
    cloud = Cloud("lambda")
    arn = AWS.function_arn("f")
    before = changed(tags={"createdby": "orchgpu", "team": "a"})
    after = changed(tags={"createdby": "orchgpu"})
    cloud.stub.add_response("untag_resource", {}, {"Resource": arn, "TagKeys": ["team"]})
    cloud.stub.add_response("tag_resource", {}, {"Resource": arn, "Tags": dict(after.tags)})
    cloud.stub.add_response(
        "update_function_configuration", ACTIVE, {**ANY_OF, "FunctionName": "f"}
    )
    cloud.answers("get_function_configuration", ACTIVE)
    LambdaFunctions(cloud.client, lambda: None, AWS).update(after, before, None)
    cloud.stub.assert_no_pending_responses()


#: The arguments that every update of the configuration has.
ANY_OF = dict.fromkeys(configuration(FUNCTION), ANY)
