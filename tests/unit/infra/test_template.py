"""The template of `orchgpu infra`: sound, with the policies of the permission table, and closed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl.plan.resources import DeployTarget
from orchgpu.infra.model import OWN_PARAMETERS, Output, named_stores
from orchgpu.infra.template import TEMPLATE, TEMPLATE_BYTES_MAX, Template, read_template
from orchgpu.permissions.model import STACK_TAG, Scope, document, trust
from orchgpu.permissions.roles import role_kind

GROUP = "AWS::AutoScaling::AutoScalingGroup"
INGRESS = "AWS::EC2::SecurityGroupIngress"
OWN = {"StateBucket": "state", "SchedulerBundle": "a.tar", "HostBundle": "b.tar"}
NETWORK = {"Vpc": "vpc-1", "SubnetA": "subnet-1", "SubnetB": "subnet-2"}
#: Parameters that decide which resources there are.
VARIANTS = {
    "Machines": ("two", "one"),
    "Functions": ("inside", "outside"),
    "WayIn": ("yes", "no"),
    "Stores": ("make", "kept"),
    "Boundary": ("make", "kept"),
}
#: Auto Scaling API, InstancesDistribution.
SPOT_STRATEGIES = (
    *("lowest-price", "capacity-optimized", "capacity-optimized-prioritized"),
    "price-capacity-optimized",
)
#: Policy of the template → the role of the permission table whose document it is.
POLICIES = {
    ("FunctionBoundary", None): "boundary",
    ("UserPolicy", None): "user",
    ("DeployerRole", "deployer"): "deployer",
    ("DeployerRole", "doctor"): "doctor",
    ("SchedulerRole", "scheduler"): "scheduler",
    ("SchedulerRole", "orchestrator"): "orchestrator",
    ("SchedulerRole", "fleet"): "fleet",
    ("HostRole", "pool"): "pool",
}


class Placeholders(DeployTarget):
    """The account and region of a stack, as its template names them."""

    @property
    def state_bucket(self) -> str:
        return "${StateBucket}"


PLACE = Placeholders(
    account="${AWS::AccountId}", region="${AWS::Region}", partition="${AWS::Partition}"
)
SCOPE = Scope(
    place=PLACE,
    bucket_prefix="${BucketPrefix}",
    function_prefix="${FunctionPrefix}",
    secret_prefix="${SecretPrefix}",
    stack="${AWS::StackName}",
)


@pytest.fixture(scope="module")
def template() -> Template:
    return read_template()


def plain(value: Any) -> Any:
    """A value with every Sub as its text."""
    if isinstance(value, dict):
        if set(value) == {"Fn::Sub"}:
            return value["Fn::Sub"]
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def policy_of(template: Template, resource: str, name: str | None) -> Any:
    properties = template.content["Resources"][resource]["Properties"]
    if name is None:
        return plain(properties["PolicyDocument"])
    [found] = [one for one in properties["Policies"] if one["PolicyName"] == name]
    return plain(found["PolicyDocument"])


def differences(template: Template) -> Iterator[str]:
    """Policies that differ from the table, with the document that they should have."""
    for (resource, name), role in POLICIES.items():
        wanted = document(role_kind(role).statements(SCOPE))
        if policy_of(template, resource, name) != json.loads(json.dumps(wanted)):
            shown = yaml.safe_dump(wanted, sort_keys=False, width=120)
            yield f"{resource} {name or ''}: its policy should be\n{shown}"


def open_to_the_internet(template: Template, values: Mapping[str, str]) -> set[str]:
    """Rules by which something from outside of the VPC gets in."""
    found = set()
    for name, one in template.resources(values).items():
        properties = one.get("Properties", {})
        if one["Type"] == INGRESS and "SourceSecurityGroupId" not in properties:
            found.add(name)
        if one["Type"] == "AWS::EC2::SecurityGroup" and "SecurityGroupIngress" in properties:
            found.add(name)
    return found


#: Planted faults that cfn-lint finds: as the template has it → as it must not be.
FAULTS = {
    "BillingMode: PAY_PER_REQUEST": "BillingMode: ON_DEMAND",
    "DependsOn: SchedulersA  #": "DependsOn: SchedulersC  #",
    "SubnetId: !Ref ZoneA, RouteTableId": "SubnetId: !Ref ZoneC, RouteTableId",
    "RetentionInDays: !Ref LogDays": "RetentionDays: !Ref LogDays",
    "Condition: TwoMachines\n    DependsOn: SchedulersB": "DependsOn: SchedulersB",
    "{AttributeName: item, KeyType: RANGE}": "{AttributeName: item, KeyType: SORT}",
}


def test_it_is_clean_in_cfn_lint_and_planted_faults_are_found() -> None:
    """One run each: a run takes seconds."""
    from cfnlint import lint  # with SymPy: every worker would import it to collect this file

    text = TEMPLATE.read_text()
    assert [str(one) for one in lint(text)] == []
    for right, wrong in FAULTS.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    found = {one.linenumber for one in lint(text)}
    lines = text.splitlines()
    for wrong in FAULTS.values():
        [first] = [
            n for n, line in enumerate(lines, 1) if line.strip() == wrong.splitlines()[0]
        ] or [next(n for n, line in enumerate(lines, 1) if wrong.splitlines()[-1] in line)]
        assert found & {first, first + 1}, wrong


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Version: !GetAtt HostTemplate.LatestVersionNumber", "Version: $Latest"),
        ("price-capacity-optimized", "cheapest"),
        ("NewInstancesProtectedFromScaleIn: true", "NewInstancesProtectedFromScaleIn: false"),
        ("HeartbeatTimeout: 180", "HeartbeatTimeout: 60"),
        ('MinSize: "0"', "MinSize: !Ref GpuMin"),
        ("AutoScalingGroupName: !Sub ${AWS::StackName}-gpu-b", "AutoScalingGroupName: gpu-b"),
        ("- !If [NewVpc, !Ref ZoneB, !Ref SubnetB]", "- !Ref ZoneA\n        - !Ref ZoneB"),
    ],
)
def test_a_group_that_loses_hosts_or_cannot_be_made_is_found(right: str, wrong: str) -> None:
    text = TEMPLATE.read_text().replace(
        "VPCZoneIdentifier: [!If", "VPCZoneIdentifier:\n        - !If"
    )
    text = text.replace(", !Ref SubnetB]]", ", !Ref SubnetB]").replace(
        ", !Ref SubnetA]]", ", !Ref SubnetA]"
    )
    assert right in text
    assert list(unsound(Template(text))) == []
    assert list(unsound(Template(text.replace(right, wrong)))) != []


def test_every_policy_is_that_of_the_permission_table(template: Template) -> None:
    assert list(differences(template)) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("sqs:GetQueueUrl", "sqs:*"),
        ("table/${AWS::StackName}", "table/*"),
        ("autoScalingGroupName/${AWS::StackName}-gpu-*", "autoScalingGroupName/*"),
        ("role/orchgpu/functions/${FunctionPrefix}*", "role/*"),
        ("Effect: Deny", "Effect: Allow"),
    ],
)
def test_a_wider_policy_is_found(right: str, wrong: str) -> None:
    text = TEMPLATE.read_text()
    assert right in text
    assert list(differences(Template(text.replace(right, wrong)))) != []


def test_every_role_of_the_template_is_compared(template: Template) -> None:
    kinds = ("AWS::IAM::ManagedPolicy", "AWS::IAM::Role")
    found = set()
    for name, one in template.content["Resources"].items():
        if one["Type"] in kinds:
            policies = one["Properties"].get("Policies", [{"PolicyName": None}])
            found |= {(name, policy["PolicyName"]) for policy in policies}
    assert found == set(POLICIES)


@pytest.mark.parametrize(
    ("resource", "role"),
    [("DeployerRole", "deployer"), ("SchedulerRole", "scheduler"), ("HostRole", "pool")],
)
def test_roles_are_assumed_as_the_table_has_it(
    template: Template, resource: str, role: str
) -> None:
    found = template.content["Resources"][resource]["Properties"]["AssumeRolePolicyDocument"]
    assert plain(found) == trust(role_kind(role).service, PLACE)


def all_variants(template: Template) -> Iterator[dict[str, str]]:
    for network in ({}, NETWORK):
        for chosen in itertools.product(*VARIANTS.values()):
            yield template.values(
                {**OWN, **network, **dict(zip(VARIANTS, chosen, strict=True))}, {}
            )


def test_nothing_gets_in_from_the_internet_unless_functions_are_outside(
    template: Template,
) -> None:
    for values in all_variants(template):
        found = open_to_the_internet(template, values)
        outside = {"AllToHosts"} | ({"AllToOneMachine"} if values["Machines"] == "one" else set())
        assert found == (outside if values["Functions"] == "outside" else set())
    assert "NatGateway" not in template.text


def test_an_open_port_is_found() -> None:
    text = TEMPLATE.read_text()
    rule = "SourceSecurityGroupId: !GetAtt HostGroup.GroupId"
    assert rule in text
    opened = Template(text.replace(rule, "CidrIp: 0.0.0.0/0"))
    values = opened.values(OWN, {})
    assert open_to_the_internet(opened, values) == {"HostsToSchedulers"}


def test_each_variant_has_the_machines_and_the_network_that_it_names(template: Template) -> None:
    for values in all_variants(template):
        found = template.resources(values)
        groups = {name for name, one in found.items() if one["Type"] == GROUP}
        both = {"SchedulersA", "PoolA", "SchedulersB", "PoolB"}
        assert groups == (both if values["Machines"] == "two" else {"SchedulersA", "PoolA"})
        assert ("Network" in found) == (values["Vpc"] == "")
        assert {"Journal", "System", "Logs"} <= set(found) or values["Stores"] == "kept"


def unsound(template: Template) -> Iterator[str]:
    """Groups that Auto Scaling could take a host from, or that CloudFormation cannot make."""
    for name, one in template.content["Resources"].items():
        if one["Type"] != GROUP:
            continue
        found = one["Properties"]
        scheduler = name.startswith("Schedulers")
        if len(found["VPCZoneIdentifier"]) != 1:
            yield f"{name}: of several zones, which Auto Scaling would balance"
        if not {tag["Key"] for tag in found["Tags"] if tag["PropagateAtLaunch"]} >= {STACK_TAG}:
            yield f"{name}: its machines have no right on their address or hook"
        if scheduler and (found["MinSize"], found["MaxSize"]) != ("1", "1"):
            yield f"{name}: not exactly one"
        launch = (
            found["LaunchTemplate"] if scheduler else _mixed(found)["LaunchTemplateSpecification"]
        )
        if launch["Version"] != {
            "Fn::GetAtt": [launch["LaunchTemplateId"]["Ref"], "LatestVersionNumber"]
        }:
            yield f"{name}: CloudFormation refuses $Latest, and a fixed version is never replaced"
        if not scheduler:
            yield from _unsound_pool(name, found)


def _mixed(found: Mapping[str, Any]) -> Mapping[str, Any]:
    launch: Mapping[str, Any] = found["MixedInstancesPolicy"]["LaunchTemplate"]
    return launch


def _unsound_pool(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    if found["NewInstancesProtectedFromScaleIn"] is not True or found["CapacityRebalance"]:
        yield f"{name}: the group may take a host by itself"
    if found["MinSize"] != "0":
        yield f"{name}: the fleet could not end its last hosts"
    if plain(found["AutoScalingGroupName"]) != f"${{AWS::StackName}}-gpu-{name[-1].lower()}":
        yield f"{name}: another group than the fleet and its role have"
    if "DesiredCapacity" in found:
        yield f"{name}: an update of the stack would set the number of hosts"
    [hook] = found["LifecycleHookSpecificationList"]
    if hook["LifecycleTransition"] != "autoscaling:EC2_INSTANCE_TERMINATING":
        yield f"{name}: no hook when a host ends"
    if hook["HeartbeatTimeout"] < 120 + 60:
        yield f"{name}: the hook is shorter than gpud's drain and a minute"
    spread = found["MixedInstancesPolicy"]["InstancesDistribution"]
    if spread["SpotAllocationStrategy"] not in SPOT_STRATEGIES:
        yield f"{name}: an unknown strategy"


def test_every_group_is_of_one_zone_and_takes_no_host_by_itself(template: Template) -> None:
    assert list(unsound(template)) == []


def test_what_holds_data_outlives_the_stack(template: Template) -> None:
    kept = {
        name
        for name, one in template.content["Resources"].items()
        if one.get("DeletionPolicy") == "Retain" and one["UpdateReplacePolicy"] == "Retain"
    }
    stores = ("Journal", "System", "Logs")
    assert kept == {*stores, "FunctionBoundary"}, "IAM deletes no policy that is a boundary"
    tag = {"Key": STACK_TAG, "Value": {"Ref": "AWS::StackName"}}
    tags = [template.content["Resources"][name]["Properties"]["Tags"] for name in stores]
    assert tags == [[tag]] * 3, "by which `rm --all` knows them"
    resources = template.content["Resources"]
    names = {
        "table": resources["Journal"]["Properties"]["TableName"],
        "secret": plain(resources["System"]["Properties"]["Name"]),
        "logs": plain(resources["Logs"]["Properties"]["LogGroupName"]),
    }
    assert names.pop("table") == {"Ref": "AWS::StackName"}
    wanted = named_stores("${AWS::StackName}")
    assert names == {kind: wanted[kind] for kind in names}


def test_parameters_and_outputs_are_those_that_commands_know(template: Template) -> None:
    assert set(OWN_PARAMETERS) <= set(template.parameters)
    assert set(template.content["Outputs"]) == {one.value for one in Output}
    without = {name for name, about in template.parameters.items() if "Default" not in about}
    assert without == set(OWN)


def test_a_template_that_is_too_large_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text(TEMPLATE.read_text() + f"# {'x' * TEMPLATE_BYTES_MAX}\n")
    with pytest.raises(Exception, match="CloudFormation's limit"):
        read_template(large)
