"""Checks of an AWS account: each fault, and only it, is found; calls fit botocore's models."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import ErrorCode
from corekit.values import replace
from fdl.beside_device import Batch, Host
from fdl.plan.resources import DeployTarget
from orchgpu.core.function import HostRun
from orchgpu.inspection.checks import installed
from orchgpu.inspection.model import (
    Answer,
    HostGateway,
    Inspected,
    ReadCall,
    Verdict,
    examined,
)
from orchgpu.inspection.subject import deployed
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles import role_kind
from tests.aws_account import FDL, PLACE, Account, function, refused, subject
from tests.history_records import FUNCTION

GOOD, WARNING, UNKNOWN, WRONG = Verdict.GOOD, Verdict.WARNING, Verdict.UNKNOWN, Verdict.WRONG
NAMES = sorted(installed())


def only(account: Account, check: str, **changes: Any) -> tuple[Verdict, str]:
    """The one finding that is not good."""
    [finding] = [f for f in account.findings(check, subject(**changes)) if f.verdict is not GOOD]
    assert finding.remedy
    return finding.verdict, finding.message


def inspected(text: str = FDL, **changes: Any) -> tuple[Inspected, ...]:
    return (Inspected(**{"function": function(text), "deployed": False, **changes}),)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_account_has_no_finding_but_good_ones(name: str) -> None:
    assert set(Account().verdicts(name)) <= {GOOD}


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_call_makes_a_check_unknown_and_is_named(name: str) -> None:
    asked = Account()
    asked.findings(name)
    for call in asked.calls:
        account = Account({f"{call.service}.{call.operation}": refused("AccessDenied")})
        findings = account.findings(name)
        assert any(f.verdict in (UNKNOWN, WRONG) or f.where == "search" for f in findings) or (
            call.operation == "GetRole"  # a role's path is guessed
        )
        texts = " ".join(f"{f.message} {f.remedy}" for f in findings)
        assert call.action in texts or call.operation == "GetRole"


@pytest.mark.parametrize("name", NAMES)
def test_the_role_of_the_doctor_has_every_action_that_is_called(name: str) -> None:
    [statement] = role_kind("doctor").statements(Scope(place=PLACE))
    account = Account()
    account.findings(name)
    assert {call.action for call in account.calls} <= set(statement.actions)


# ---------------------------------------------------------------------- quotas


def limits(limit: int, unreserved: int) -> Account:
    counts = {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": unreserved}
    return Account({"lambda.GetAccountSettings": {"AccountLimit": counts}})


@pytest.mark.parametrize(
    ("limit", "unreserved", "devices", "verdict"),
    [
        (1000, 900, 2, GOOD),
        (1000, 900, 901, WRONG),
        (10, 10, 11, WRONG),
        (10, 10, 2, WARNING),
        (1000, 900, None, UNKNOWN),
    ],
)
def test_concurrency_is_compared_with_devices(
    limit: int, unreserved: int, devices: int | None, verdict: Verdict
) -> None:
    [found] = limits(limit, unreserved).verdicts("concurrency", subject(devices=devices))
    assert found is verdict


WITHOUT_JOBS = """
functions:
  aws:
    - lambda:
        name: copy
        init_script: f.sh
        reserved_concurrency: 20
        input: [{storage_provider: s3, path: their-in/in}]
        output: [{storage_provider: s3, path: their-out/out}]
"""
DECLARED = "set job.concurrency to 3, or change reserved_concurrency (job.concurrency + 2 = 52)"


def jobs(keys: str) -> str:
    """The definition with further keys of its jobs."""
    return FDL.replace("queries}}", f"queries}}, {keys}}}")


@pytest.mark.parametrize(
    ("text", "reserved", "verdict", "remedy"),
    [
        (jobs("concurrency: 50"), 0, WRONG, "delete-function-concurrency"),
        (jobs("concurrency: 50"), 5, WARNING, "set job.concurrency to 3"),
        (jobs("concurrency: 50"), 51, WARNING, "(job.concurrency + 2 = 52)"),  # of second starts
        (jobs("concurrency: 50"), 52, GOOD, ""),
        (jobs("concurrency: 5, start: event"), 5, GOOD, ""),
        (FDL, 4, WARNING, "(devices + 2 = 6)"),
        (WITHOUT_JOBS, 20, GOOD, ""),
        (
            jobs("concurrency: 50").replace("name: ", "reserved_concurrency: 5\n      name: ", 1),
            5,
            WARNING,
            DECLARED,
        ),
    ],
)
def test_a_reservation_is_compared_with_the_starts_of_jobs(
    text: str, reserved: int, verdict: Verdict, remedy: str
) -> None:
    answer = {"ReservedConcurrentExecutions": reserved}
    account = Account({"lambda.GetFunctionConcurrency": answer})
    given = subject(functions=inspected(text, deployed=True), devices=4)
    last = account.findings("reservations", given)[-1]
    assert last.verdict is verdict
    assert remedy in last.remedy
    assert ("has two starts for a moment" in last.message) is (verdict is WARNING)


# ---------------------------------------------------------------------- policies


def test_denied_actions_are_named() -> None:
    account = Account()
    account.denied = {"s3:CreateBucket"}
    verdict, message = only(account, "policies")
    assert verdict is WRONG
    assert "s3:CreateBucket on arn:aws:s3:::search-in" in message
    account.denied = {"sqs:ReceiveMessage"}
    assert "sqs:ReceiveMessage on" in account.findings("policies")[-1].message
    [result] = account.healthy("SimulatePrincipalPolicy", ActionNames=["s3:CreateBucket"])[
        "EvaluationResults"
    ]
    for detail, cause in (
        ({"EvalDecision": "explicitDeny"}, "refused by a Deny statement"),
        (
            {"PermissionsBoundaryDecisionDetail": {"AllowedByPermissionsBoundary": False}},
            "refused by the permissions boundary",
        ),
        ({"MissingContextValues": ["aws:SourceVpc"]}, "no value here (aws:SourceVpc)"),
    ):
        refusal = {"EvaluationResults": [{**result, "EvalDecision": "implicitDeny", **detail}]}
        account = Account({"iam.SimulatePrincipalPolicy": refusal})
        assert cause in account.findings("policies")[0].message


@pytest.mark.parametrize(
    ("caller", "principal"),
    [
        ("arn:aws:iam::123456789012:user/x/alice", "arn:aws:iam::123456789012:user/x/alice"),
        (
            "arn:aws:sts::123456789012:assumed-role/deployer/session",
            "arn:aws:iam::123456789012:role/team/deployer",
        ),
    ],
)
def test_the_principal_behind_the_caller_is_simulated(caller: str, principal: str) -> None:
    account = Account()
    account.findings("policies", subject(caller=caller, orchestrator_role=""))
    asked = [c for c in account.calls if c.operation == "SimulatePrincipalPolicy"]
    assert {c.arguments["PolicySourceArn"] for c in asked} == {principal}
    assert not any("*" in arn for c in asked for arn in c.arguments.get("ResourceArns", ()))


def test_root_and_federated_users_are_not_simulated() -> None:
    account = Account()
    root = subject(caller="arn:aws:iam::123456789012:root", orchestrator_role="")
    assert account.verdicts("policies", root) == [WARNING, UNKNOWN]
    federated = subject(caller="arn:aws:sts::123456789012:federated-user/bob", orchestrator_role="")
    assert account.verdicts("policies", federated) == [UNKNOWN, UNKNOWN]
    assert not account.calls


def test_a_forbidden_simulation_is_unknown() -> None:
    account = Account({"iam.SimulatePrincipalPolicy": refused("AccessDenied")})
    findings = account.findings("policies")
    assert [f.verdict for f in findings] == [UNKNOWN, UNKNOWN]
    assert "not allowed to simulate" in findings[0].message


def test_a_role_of_a_function_exists_and_trusts_lambda() -> None:
    role = "arn:aws:iam::123456789012:role/runner"
    functions = inspected(FDL.replace("{create: true}", f"{{role: '{role}'}}"), role=role)
    absent = Account({"iam.GetRole": refused("NoSuchEntity", ErrorCode.NOT_FOUND)})
    assert "does not exist" in only(absent, "function_policy", functions=functions)[1]
    verdict, message = only(Account(), "function_policy", functions=functions)
    assert (verdict, "Lambda may not assume" in message) == (WRONG, True)


def test_a_function_on_hosts_alone_is_inspected_without_lambda() -> None:
    role = "arn:aws:iam::123456789012:role/runner"
    run = HostRun(package_bucket="state", package_key="p.zip", role=role)
    account = Account()
    found = deployed(replace(FUNCTION, execution="host", host=run), account)
    assert (found.role, found.deployed, found.function.on_host) == (role, False, True)
    assert account.calls == []
    assert account.verdicts("runtimes", subject(functions=(found,))) == [GOOD]


@pytest.mark.parametrize(
    ("principal", "verdict"),
    [
        ({"AWS": "arn:aws:iam::123456789012:root"}, GOOD),
        ({"AWS": ["arn:aws:iam::123456789012:role/orchgpu-orchestrator"]}, GOOD),
        ({"AWS": "arn:aws:iam::123456789012:role/other"}, WRONG),
        ({"Service": "lambda.amazonaws.com"}, WRONG),
    ],
)
def test_the_orchestrator_assumes_the_role_of_a_function_on_hosts(
    principal: dict[str, Any], verdict: Verdict
) -> None:
    role = "arn:aws:iam::123456789012:role/runner"
    text = FDL.replace("{create: true}", f"{{role: '{role}'}}") + "    execution: host\n"
    text = text.replace(
        "      vpc: {SubnetIds: [subnet-a, subnet-b], SecurityGroupIds: [sg-functions]}\n", ""
    )
    functions = inspected(text, role=role)
    account = Account()

    def read(call: ReadCall) -> Answer:
        """Boto3 decodes the document, which is text in the model."""
        answer = account(call)
        if call.operation == "GetRole":
            trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal}
            answer["Role"]["AssumeRolePolicyDocument"] = {"Statement": trust}
        return answer

    found = list(examined(installed()["function_policy"], subject(functions=functions), read))
    assert max(found, key=lambda one: one.verdict is WRONG).verdict is verdict
    if verdict is WRONG:
        wrong = next(one for one in found if one.verdict is WRONG)
        assert wrong.message.startswith(f"the orchestrator may not assume {role}")
        assert wrong.remedy.startswith("add the AWS principal arn:aws:iam::123456789012:root")


@pytest.mark.parametrize(
    ("service", "verdict"), [("ecs-tasks.amazonaws.com", GOOD), ("lambda.amazonaws.com", WRONG)]
)
def test_containers_in_batch_have_the_role_of_their_function(
    service: str, verdict: Verdict
) -> None:
    role = "arn:aws:iam::123456789012:role/runner"
    (one,) = inspected(FDL.replace("{create: true}", f"{{role: '{role}'}}"), role=role)
    host = Host(batch=Batch(queue="gpus", definition="fold"))
    function = replace(one.function, execution="host", host=host, gpu=None)
    account = Account()

    def read(call: ReadCall) -> Answer:
        answer = account(call)
        if call.operation == "GetRole":
            trust = {"Effect": "Allow", "Action": "sts:AssumeRole"}
            statement = {**trust, "Principal": {"Service": service}}
            answer["Role"]["AssumeRolePolicyDocument"] = {"Statement": statement}
        return answer

    functions = (replace(one, function=function),)
    found = list(examined(installed()["function_policy"], subject(functions=functions), read))
    assert max(found, key=lambda one: one.verdict is WRONG).verdict is verdict
    if verdict is WRONG:
        wrong = next(one for one in found if one.verdict is WRONG)
        assert wrong.message == f"containers of AWS Batch may not have the role {role}"


# ---------------------------------------------------------------------- networks


def test_subnets_that_do_not_exist_are_wrong_in_one_check() -> None:
    gone = refused("InvalidSubnetID.NotFound", ErrorCode.NOT_FOUND)
    account = Account({"ec2.DescribeSubnets": gone})
    assert only(account, "function_network")[0] is WRONG
    assert account.verdicts("gateways") == [UNKNOWN]
    assert account.verdicts("way_to_s3") == [UNKNOWN]


def test_a_function_outside_a_vpc_does_not_reach_private_hosts() -> None:
    vpc = "vpc: {SubnetIds: [subnet-a, subnet-b], SecurityGroupIds: [sg-functions]}"
    text = FDL.replace(vpc, "timeout: 9")
    verdict, message = only(Account(), "function_network", functions=inspected(text))
    assert (verdict, "gpu-a" in message) == (WRONG, True)


def test_subnets_of_several_vpcs_are_wrong() -> None:
    subnets = Account().healthy("DescribeSubnets", SubnetIds=["subnet-a", "subnet-b"])
    subnets["Subnets"][1]["VpcId"] = "vpc-2"
    account = Account({"ec2.DescribeSubnets": subnets})
    assert "in several VPCs: vpc-1, vpc-2" in only(account, "function_network")[1]


def test_a_missing_rule_on_either_side_is_found_with_its_command() -> None:
    account = Account()
    account.network["groups"]["sg-hosts"]["IpPermissions"] = []
    [found] = account.findings("gateways")
    assert "no inbound rule of sg-hosts" in found.message
    assert "authorize-security-group-ingress --group-id sg-hosts" in found.remedy
    account = Account()
    account.network["groups"]["sg-functions"]["IpPermissionsEgress"] = []
    [found] = account.findings("gateways")
    assert "no outbound rule of sg-functions" in found.message


@pytest.mark.parametrize("source", ["10.0.0.0/16", "10.0.1.0/24"])
def test_rules_may_name_addresses_of_all_subnets(source: str) -> None:
    account = Account()
    rule = {"IpProtocol": "tcp", "FromPort": 1, "ToPort": 65535, "IpRanges": [{"CidrIp": source}]}
    account.network["groups"]["sg-hosts"]["IpPermissions"] = [rule]
    assert account.verdicts("gateways") == [GOOD if source.endswith("/16") else WRONG]


@pytest.mark.parametrize(
    ("routes", "verdict"),
    [
        ([{"DestinationCidrBlock": "0.0.0.0/0", "TransitGatewayId": "tgw-1"}], GOOD),
        ([{"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"}], WRONG),
        ([{"DestinationCidrBlock": "10.1.0.0/16", "GatewayId": "local"}], WRONG),
        (
            [
                {
                    "DestinationCidrBlock": "10.9.0.0/16",
                    "NatGatewayId": "nat-1",
                    "State": "blackhole",
                },
                {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-2"},
            ],
            WRONG,
        ),
    ],
)
def test_the_route_with_the_longest_prefix_counts(routes: Any, verdict: Verdict) -> None:
    account = Account()
    account.routes = routes
    far = HostGateway(host="gpu-b", address="10.9.0.1", port=4711)
    findings = account.findings("gateways", subject(gateways=(far,)))
    assert {f.verdict for f in findings} == {verdict}


def test_an_address_of_the_hosts_own_machine_is_wrong() -> None:
    own = HostGateway(host="gpu-a", address="127.0.0.1", port=4711)
    assert only(Account(), "gateways", gateways=(own,))[0] is WRONG
    near = DeployTarget(account=PLACE.account, region=PLACE.region, local=True)
    assert Account().verdicts("gateways", subject(gateways=(own,), place=near)) == [GOOD]
    nowhere = HostGateway(host="gpu-a", address="", port=4711)
    assert only(Account(), "gateways", gateways=(nowhere,))[0] is UNKNOWN


def test_s3_needs_an_endpoint_or_nat() -> None:
    account = Account()
    account.endpoints = []
    findings = [f for f in account.findings("way_to_s3") if f.verdict is WRONG]
    assert len(findings) == 2  # one for each subnet
    assert "create-vpc-endpoint" in findings[0].remedy
    account.routes.append({"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1"})
    assert WRONG in account.verdicts("way_to_s3")  # functions have no public address
    account.routes[-1] = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1"}
    assert account.verdicts("way_to_s3") == [GOOD]


# ---------------------------------------------------------------------- buckets, code


def heads(**answers: Any) -> Account:
    """Answers of HeadBucket by the bucket's name, with `_` for `-`."""

    def head(arguments: Any) -> Any:
        return answers.get(arguments["Bucket"].replace("-", "_"))

    return Account({"s3.HeadBucket": head})


def test_a_bucket_of_another_account_is_found() -> None:
    state = PLACE.state_bucket

    def head(arguments: Any) -> Any:
        own = "ExpectedBucketOwner" in arguments
        taken = arguments["Bucket"] == state and own
        return refused("403") if taken else {"BucketRegion": PLACE.region}

    verdict, message = only(Account({"s3.HeadBucket": head}), "buckets")
    assert (verdict, "it belongs to another account" in message) == (WRONG, True)


def test_a_declared_owner_is_expected() -> None:
    text = FDL.replace("{path: search-out/hits}", "{path: search-out/hits, owner: '999999999999'}")
    account = Account()
    account.findings("buckets", subject(functions=inspected(text)))
    owners = {
        call.arguments["Bucket"]: call.arguments["ExpectedBucketOwner"]
        for call in account.calls
        if call.operation == "HeadBucket"
    }
    assert owners["search-out"] == "999999999999"
    assert owners["search-in"] == PLACE.account


def test_regions_and_versions_of_buckets() -> None:
    account = heads(search_in={"BucketRegion": "us-east-1"})
    assert "us-east-1" in only(account, "buckets")[1]
    assert heads(search_out=refused("404", ErrorCode.NOT_FOUND)).verdicts("buckets") == [GOOD] * 4
    account = Account({"s3.GetBucketVersioning": {}})
    assert [v for v in account.verdicts("buckets") if v is not GOOD] == [WARNING, WARNING]


@pytest.mark.parametrize(
    ("runtime", "shipped", "verdict"),
    [
        ("python3.12", "", GOOD),
        ("python3.13", "", GOOD),
        ("python3.11", "", WRONG),
        ("python3.12", "1.40.1", WARNING),
        ("python3.12", "1.9.0", WRONG),
    ],
)
def test_runtimes_and_their_boto3(runtime: str, shipped: str, verdict: Verdict) -> None:
    text = FDL.replace("name: search\n", f"name: search\n      runtime: {runtime}\n")
    given = subject(functions=inspected(text, boto3=shipped))
    assert Account().verdicts("runtimes", given) == [verdict]
