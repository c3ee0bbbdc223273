"""`orchgpu doctor --aws` against clouds over HTTP: it reads, and reports what would fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber

from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId
from gpu_scheduler.model import HostState
from gpu_scheduler.protocol.answers import HostView
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.inspection import reader
from orchgpu.cli.inspecting import gateway_of, inspect, shipped_boto3
from orchgpu.cloud_services import Address
from orchgpu.inspection.model import Finding, Read, ReadCall, Verdict
from orchgpu.inspection.subject import deployed
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.provider import provider
from orchgpu.permissions.model import Scope
from tests.aws_account import PLACE, function
from tests.commandline import done
from tests.embedded_cloud import cloud_in
from tests.integration.conftest import Programs

REGION = "us-east-1"
FDL = """\
functions:
  aws:
  - lambda:
      name: search
      init_script: search.py
      output: [{{path: search-out/hits}}]
      vpc: {{SubnetIds: [{subnets}], SecurityGroupIds: [{group}]}}
    gpu: {{memory: 512}}
    job: {{input: {{path: search-in/queries}}}}
"""


def client(service: str, endpoint: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0})
    return boto3.client(service, endpoint_url=endpoint, region_name=REGION, config=config, **keys)


@pytest.fixture
def moto(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> str:
    endpoint = str(programs.start("orchgpu.local.moto").wait_ready()["endpoint"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return endpoint


class Network:
    """A VPC in moto as docs/reference/aws-by-hand.md makes one, with a host."""

    def __init__(self, endpoint: str) -> None:
        self.ec2 = ec2 = client("ec2", endpoint)
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            ec2.create_subnet(
                VpcId=vpc, CidrBlock=f"10.0.{n}.0/24", AvailabilityZone=f"{REGION}{zone}"
            )["Subnet"]["SubnetId"]
            for n, zone in ((1, "a"), (2, "b"))
        ]
        self.functions, self.hosts = (
            ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
            for name in ("functions", "hosts")
        )
        self.rule = [
            {
                "IpProtocol": "tcp",
                "FromPort": 4711,
                "ToPort": 4711,
                "UserIdGroupPairs": [{"GroupId": self.functions}],
            }
        ]
        ec2.authorize_security_group_ingress(GroupId=self.hosts, IpPermissions=self.rule)
        ec2.create_network_interface(
            SubnetId=self.subnets[0], PrivateIpAddress="10.0.1.5", Groups=[self.hosts]
        )
        tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
        self.vpc, self.table = vpc, tables["RouteTables"][0]["RouteTableId"]

    def endpoint(self) -> None:
        self.ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.s3",
            RouteTableIds=[self.table],
        )


def definition(folder: Path, network: Network) -> Path:
    file = folder / "fdl.yaml"
    names = {"subnets": ", ".join(network.subnets), "group": network.functions}
    file.write_text(FDL.format(**names))
    return file


def findings(file: Path | None, *names: str) -> dict[str, list[Finding]]:
    host = HostView(
        host=HostId("gpu-a"),
        state=HostState.UP,
        gateway="10.0.1.5:4711",
        incarnation="i",
        silent_s=0.0,
        devices=(),
    )
    found: dict[str, list[Finding]] = {}
    with closing(JobCloud()) as cloud:
        for title, finding in inspect(cloud, file, names, [host], ""):
            found.setdefault(title, []).append(finding)
    return found


def test_a_network_is_judged_before_and_after_it_is_corrected(moto: str, tmp_path: Path) -> None:
    network = Network(moto)
    file = definition(tmp_path, network)
    before = findings(file)
    ways = before["ways to S3"]
    assert {f.verdict for f in ways} == {Verdict.WRONG}
    assert "no way to S3" in ways[0].message
    assert before["ways to the gateways"][0].verdict is Verdict.GOOD
    assert before["networks of functions"][0].verdict is Verdict.GOOD
    network.endpoint()
    network.ec2.revoke_security_group_ingress(GroupId=network.hosts, IpPermissions=network.rule)
    after = findings(file)
    assert Verdict.WRONG not in {f.verdict for f in after["ways to S3"]}
    [entry] = after["ways to the gateways"]
    assert (entry.verdict, network.hosts in entry.remedy) == (Verdict.WRONG, True)


def test_it_changes_nothing(moto: str, tmp_path: Path) -> None:
    file = definition(tmp_path, Network(moto))
    findings(file)
    assert client("s3", moto).list_buckets()["Buckets"] == []
    assert client("lambda", moto).list_functions()["Functions"] == []


def test_buckets_of_other_regions_are_found(moto: str, tmp_path: Path) -> None:
    client("s3", moto).create_bucket(
        Bucket="search-in", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    found = findings(definition(tmp_path, Network(moto)))["buckets"]
    [wrong] = [f for f in found if f.verdict is Verdict.WRONG]
    assert (wrong.where, "eu-west-1" in wrong.message) == ("bucket search-in", True)


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with cloud_in(tmp_path, concurrency_max=40) as address:
        endpoint = f"http://{address.netloc}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.chdir(tmp_path)
        yield endpoint


def test_the_command_on_the_embedded_cloud(embedded: str, tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("")
    file = tmp_path / "fdl.yaml"
    file.write_text(FDL.format(subnets="subnet-1", group="sg-1"))
    ended = done(["doctor", "--aws", str(file), "--json"])
    assert ended.exit_code == 1, ended.output  # there is no scheduler
    said = json.loads(ended.stdout)["findings"]
    assert [f["check"] for f in said if not f["good"]] == ["scheduler"]
    concurrency = next(f for f in said if f["check"] == "Lambda concurrency")
    assert "40 concurrent executions" in concurrency["message"]
    unknown = next(f for f in said if f["check"] == "networks of functions")
    assert (unknown["verdict"], "ec2:DescribeSubnets" in unknown["message"]) == ("unknown", True)
    lines = done(["doctor", "--aws", str(file)]).stdout.splitlines()
    assert any(line.startswith("warning policies of deployer and orchestrator") for line in lines)


def test_deployed_functions_are_checked_without_a_file(embedded: str, tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("")
    file = tmp_path / "fdl.yaml"
    plain = FDL.format(subnets="", group="").replace(
        "      vpc: {SubnetIds: [], SecurityGroupIds: []}\n", ""
    )
    file.write_text(plain)
    assert done(["deploy", str(file)]).exit_code == 0
    found = findings(None)
    assert {f.where for f in found["runtimes"]} == {"function search"}
    names = {f.where for f in found["buckets"]}
    assert {"bucket search-in", "bucket search-out", "bucket search-intermediate"} <= names
    client("lambda", embedded).put_function_concurrency(
        FunctionName="search", ReservedConcurrentExecutions=0
    )
    reserved = findings(None)["reserved concurrency"][-1]
    assert (reserved.verdict, "never runs" in reserved.message) == (Verdict.WRONG, True)
    client("lambda", embedded).delete_function(FunctionName="search")
    assert "GetFunctionConfiguration" in findings(None)["functions"][0].message


FILM = """\
functions:
  aws:
  - lambda: {name: cut, init_script: cut.sh, input: [{path: film/in}], output: [{path: film/parts}]}
  - lambda:
      {name: table, init_script: cut.sh, input: [{path: film/parts}], output: [{path: film/out}]}
  - lambda: {name: other, init_script: cut.sh, input: [{path: else/in}], output: [{path: else/out}]}
workflows:
  film: {steps: [cut, table], notify: {queue: ends}}
"""


def test_a_workflow_stands_for_its_steps_and_needs_its_queues(
    embedded: str, tmp_path: Path
) -> None:
    (tmp_path / "cut.sh").write_text("")
    file = tmp_path / "fdl.yaml"
    file.write_text(FILM)
    assert done(["deploy", str(file)]).exit_code == 0
    for where in (None, file):
        found = findings(where, "film")
        assert {f.where for f in found["runtimes"]} == {"function cut", "function table"}
        [missing] = found["notices"]
        assert (missing.verdict, missing.where) == (Verdict.WRONG, "notify, queue ends")
    client("sqs", embedded).create_queue(QueueName="ends")
    assert [f.verdict for f in findings(None, "film")["notices"]] == [Verdict.GOOD]
    with closing(JobCloud()) as cloud, provider().deploy_cloud(Address(), Address()) as target:
        step = deployed(cloud.function("table"), target.read, cloud.workflow("film"))
    scope = Scope(place=PLACE, functions=(step.function,))
    assert [arn.rpartition(":")[2] for arn in scope.workflow_queues] == [
        "film-runs",
        "film-runs-dlq",
    ]
    assert scope.runs() == ("arn:aws:s3:::cut-intermediate/runs/*",)


def test_a_definition_has_the_named_functions(embedded: str, tmp_path: Path) -> None:
    file = tmp_path / "fdl.yaml"
    file.write_text(FDL.format(subnets="subnet-1", group="sg-1"))
    ended = done(["doctor", "other", "--aws", str(file), "--json"])
    last = json.loads(ended.stdout)["findings"][-1]
    assert (last["good"], "has no function other" in last["message"]) == (False, True)


# ---------------------------------------------------------------------- the reader


@pytest.fixture
def stubbed() -> Iterator[tuple[Read, Stubber]]:
    """A reader whose clients answer as a test wants."""
    ours = client("lambda", "http://127.0.0.1:9")
    with Stubber(ours) as stub:
        yield reader(lambda _service: AwsClient(ours)), stub


CALL = ReadCall(service="lambda", operation="GetAccountSettings")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDeniedException", 403, ErrorCode.DENIED),
        ("UnauthorizedOperation", 403, ErrorCode.DENIED),
        ("InvalidSubnetID.NotFound", 400, ErrorCode.NOT_FOUND),
        ("ThrottlingException", 429, ErrorCode.EXHAUSTED),
    ],
)
def test_errors_are_translated_once(
    stubbed: tuple[Read, Stubber], code: str, status: int, kind: ErrorCode
) -> None:
    read, stub = stubbed
    stub.add_client_error("get_account_settings", code, "why", status)
    for _ in range(2):  # the second answer is remembered
        with pytest.raises(AppError, match=r"^lambda:GetAccountSettings: ") as refusal:
            read(CALL)
        assert refusal.value.code is kind


def test_a_call_is_made_once_and_only_when_it_reads(stubbed: tuple[Read, Stubber]) -> None:
    read, stub = stubbed
    limits = {"ConcurrentExecutions": 10, "UnreservedConcurrentExecutions": 10}
    stub.add_response("get_account_settings", {"AccountLimit": limits})
    assert read(CALL)["AccountLimit"] == limits
    assert read(CALL)["AccountLimit"] == limits
    with pytest.raises(AppError, match="may change something"):
        read(ReadCall(service="lambda", operation="DeleteFunction"))


def test_names_of_gateways_and_shipped_packages_are_looked_up(tmp_path: Path) -> None:
    assert gateway_of("a", "127.0.0.1:4711").address == "127.0.0.1"
    assert gateway_of("a", "no-such-host.invalid:4711").address == ""
    text = "functions: {aws: [{lambda: {name: x, extra_payload: lib, handler: a.b}}]}"
    declared = function(text)
    assert shipped_boto3(declared, tmp_path) == ""
    (tmp_path / "lib" / "boto3").mkdir(parents=True)
    (tmp_path / "lib" / "boto3" / "__init__.py").write_text("__version__ = '1.34.145'\n")
    assert shipped_boto3(declared, tmp_path) == "1.34.145"
