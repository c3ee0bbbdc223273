"""Weather over AWS's protocols: boto3 gets AWS's own answers, and a deploy survives them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.plan import Step
from local_cloud.model.weather import AWS, Weather
from orchgpu.adapters.aws.commands import connect
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import ClientSettings, resolve
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import execute, prepare, prepare_removal
from tests.contract.conftest import TRUST
from tests.contract.zips import zipped
from tests.embedded_cloud import Address as CloudAddress
from tests.embedded_cloud import client_of, cloud_in

FAST = replace(AWS, scale=0.02, seed="7")
FDL = """\
functions:
  aws:
  - lambda:
      name: first
      memory: 256
      init_script: run.sh
      output: [{path: first-out}]
    iam: {create: true}
    gpu: {memory: 1GiB, kinds: [cpu]}
    job: {input: {path: first-in}}
"""


class Clients:
    """boto3 clients of one cloud, by service; they repeat nothing."""

    def __init__(self, address: CloudAddress, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._clients: dict[str, Any] = {}

    def __getattr__(self, service: str) -> Any:
        name = {"lambda_": "lambda"}.get(service, service)
        if name not in self._clients:
            self._clients[name] = self._stack.enter_context(client_of(self._address, name))
        return self._clients[name]

    def counts(self) -> dict[str, int]:
        answer = self._address.ask("GET", "/_local_cloud/weather")
        counts: dict[str, int] = json.loads(answer.body)["counts"]
        return counts


@pytest.fixture
def weather(tmp_path: Path) -> Iterator[Callable[[Weather], Clients]]:
    """Starts a cloud in the given weather."""
    with ExitStack() as stack:

        def start(weather: Weather) -> Clients:
            address = stack.enter_context(cloud_in(tmp_path, weather=weather))
            return Clients(address, stack)

        yield start


def refused(call: Callable[..., object], **arguments: object) -> tuple[str, str, int]:
    """Code, text and status of the error that a call raises."""
    with pytest.raises(ClientError) as error:
        call(**arguments)
    answer = error.value.response
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    return str(answer["Error"]["Code"]), str(answer["Error"]["Message"]), status


def test_a_role_keeps_its_tags_path_and_boundary(weather: Callable[[Weather], Clients]) -> None:
    iam = weather(Weather()).iam
    boundary = "arn:aws:iam::000000000000:policy/limit"
    made = iam.create_role(
        RoleName="r",
        Path="/team/",
        AssumeRolePolicyDocument=TRUST,
        PermissionsBoundary=boundary,
        Description="mine",
        Tags=[{"Key": "a", "Value": "1"}],
    )["Role"]
    assert made["Arn"] == "arn:aws:iam::000000000000:role/team/r"
    iam.tag_role(RoleName="r", Tags=[{"Key": "b", "Value": "2"}])
    iam.untag_role(RoleName="r", TagKeys=["a"])
    found = iam.get_role(RoleName="r")["Role"]
    assert found["Tags"] == [{"Key": "b", "Value": "2"}]
    assert found["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary
    assert (found["Description"], found["Path"]) == ("mine", "/team/")
    iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument='{"Statement": []}')
    assert refused(iam.delete_role, RoleName="r")[0] == "DeleteConflict"
    iam.delete_role_policy(RoleName="r", PolicyName="p")
    iam.delete_role(RoleName="r")
    assert refused(iam.get_role, RoleName="r")[0] == "NoSuchEntity"


def test_a_function_is_pending_then_updating(weather: Callable[[Weather], Clients]) -> None:
    aws = weather(Weather(pending_s=(1.0, 1.0), vpc_pending_s=(1.0, 1.0), update_s=(9e6, 9e6)))
    made = aws.lambda_.create_function(
        FunctionName="f",
        Role="arn:aws:iam::000000000000:role/any",
        Runtime="python3.11",
        Handler="app.handle",
        Code={"ZipFile": zipped("def handle(e, c): return 'first'")},
        VpcConfig={"SubnetIds": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    )
    assert (made["State"], made["VpcConfig"]["SubnetIds"]) == ("Pending", ["subnet-1"])
    assert refused(aws.lambda_.invoke, FunctionName="f")[::2] == ("ResourceConflictException", 409)
    aws.lambda_.get_waiter("function_active_v2").wait(
        FunctionName="f", WaiterConfig={"Delay": 1, "MaxAttempts": 60}
    )
    code = zipped("def handle(e, c): return 'second'")
    updated = aws.lambda_.update_function_code(FunctionName="f", ZipFile=code)
    assert updated["LastUpdateStatus"] == "InProgress"
    again = refused(aws.lambda_.update_function_code, FunctionName="f", ZipFile=code)
    assert "An update is in progress for resource" in again[1]
    with aws.lambda_.invoke(FunctionName="f")["Payload"] as payload:
        assert json.loads(payload.read()) == "first"


def test_a_bucket_of_another_region_is_found_by_the_answers(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    with cloud_in(tmp_path / "there", weather=Weather(regions=True)) as address:
        with client_of(address, "s3", region="eu-west-1") as there:
            where = {"LocationConstraint": "eu-west-1"}
            there.create_bucket(Bucket="far", CreateBucketConfiguration=where)
            here = there.head_bucket(Bucket="far")["ResponseMetadata"]["HTTPHeaders"]
            assert here["x-amz-bucket-region"] == "eu-west-1"
        with client_of(address, "s3") as other:
            assert refused(other.create_bucket, Bucket="b-2", CreateBucketConfiguration=where)[
                0
            ] == ("IllegalLocationConstraintException")
            other.put_object(Bucket="far", Key="k", Body=b"x")  # botocore follows the redirect
        signed = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request"
        }
        answer = address.ask("HEAD", "/far", headers=signed)
        assert (answer.status, answer.headers["x-amz-bucket-region"]) == (301, "eu-west-1")
        assert address.ask("GET", "/far", headers=signed).code == "PermanentRedirect"


#: A deploy that ends when botocore got the answer of the call named by the last argument.
_CUT_OFF = """
import os, pathlib, sys
from corekit.budget import Budget
from corekit.values import replace
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.deploy.deployment import execute, prepare

path, endpoint, call = sys.argv[1:]
settings = lambda service: replace(resolve(service, endpoint_url=endpoint), local=False)
cloud = AwsCloud(settings)

def after(http_response, **_):
    if http_response.status_code < 300:
        os._exit(9)

cloud.client("lambda").meta.events.register("after-call.lambda." + call, after)
execute(prepare(pathlib.Path(path), cloud, Budget()), cloud, lambda *_: None)
"""


class FirstDeploy:
    """`orchgpu deploy` as on AWS, with a role of its own, against the cloud of a test."""

    def __init__(self, aws: Clients, folder: Path) -> None:
        self.aws = aws
        self.endpoint = f"http://{aws._address.netloc}"
        script = folder / "run.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        script.chmod(0o755)
        self.file = folder / "first.yaml"
        self.write(FDL)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def settings(self, service: str) -> ClientSettings:
        return replace(resolve(service, endpoint_url=self.endpoint), local=False)

    def run(self) -> list[Step]:
        """Deploy; the steps that were done."""
        with closing(AwsCloud(self.settings)) as cloud:
            prepared = prepare(self.file, cloud, Budget())
            execute(prepared, cloud, lambda *_: None)
            return list(prepared.plan.steps)

    def cut_off(self, at: str) -> None:
        """Deploy until just after Lambda was asked for the function, as by SIGKILL."""
        command = [sys.executable, "-c", _CUT_OFF, str(self.file), self.endpoint, at]
        assert subprocess.run(command, check=False, timeout=60).returncode == 9

    def remove(self) -> None:
        with closing(AwsCloud(self.settings)) as cloud:
            execute(prepare_removal(["first"], cloud), cloud, lambda *_: None)


def test_a_first_deploy_with_a_role_of_its_own_survives(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    slow = (80.0, 120.0)  # at this scale about two seconds
    rough = replace(FAST, role_s=slow, role_policy_s=slow, bucket_busy_rate=0.5)
    deploy = FirstDeploy(weather(rough), tmp_path)
    assert deploy.run()
    made = deploy.aws.lambda_.get_function_configuration(FunctionName="first")
    role = deploy.aws.iam.get_role(RoleName=made["Role"].rpartition("/")[2])["Role"]
    assert made["Role"] == role["Arn"]
    assert deploy.aws.counts()["role unknown"] > 0
    assert deploy.run() == []


def test_a_deploy_that_was_cut_off_while_the_function_is_pending_is_repeated(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    pending = (100.0, 100.0)  # two seconds
    deploy = FirstDeploy(weather(replace(FAST, pending_s=pending, update_s=pending)), tmp_path)
    deploy.cut_off("CreateFunction")
    assert deploy.run()
    deploy.write(FDL.replace("memory: 256", "memory: 512"))
    deploy.cut_off("UpdateFunctionConfiguration")
    deploy.write(FDL.replace("memory: 256", "memory: 1024"))
    assert deploy.run()
    made = deploy.aws.lambda_.get_function_configuration(FunctionName="first")
    assert made["MemorySize"] == 1024


@pytest.mark.soak
def test_a_function_is_removed_and_deployed_again(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    deploy = FirstDeploy(weather(replace(FAST, queue_deleted_s=300.0)), tmp_path)
    assert deploy.run()
    deploy.remove()
    assert deploy.run()
    assert deploy.aws.counts()["queue deleted recently"] > 0


def test_a_function_in_a_vpc_is_deployed(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    slow = (100.0, 100.0)
    deploy = FirstDeploy(weather(replace(FAST, role_policy_s=slow, vpc_pending_s=slow)), tmp_path)
    vpc = "lambda:\n      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}"
    deploy.write(FDL.replace("lambda:", vpc, 1))
    assert deploy.run()
    made = deploy.aws.lambda_.get_function_configuration(FunctionName="first")
    assert (made["State"], made["VpcConfig"]["SubnetIds"]) == ("Active", ["subnet-1"])
    assert deploy.aws.counts()["role's policy unknown"] > 0
    assert deploy.run() == []


def test_conditional_writes_of_a_deploy_are_repeated_and_recognised(
    weather: Callable[[Weather], Clients], tmp_path: Path
) -> None:
    racing = Weather(seed="1", write_conflict_rate=0.4, lost_answer_rate=0.4)
    deploy = FirstDeploy(weather(racing), tmp_path)
    assert deploy.run()
    with closing(AwsCloud(deploy.settings)) as cloud:
        assert [revision.number for revision in cloud.revisions("first")] == [1]
    counts = deploy.aws.counts()
    assert counts["write conflict"] > 0
    assert counts["answer lost"] > 0


def test_a_result_that_a_command_writes_is_repeated_and_recognised(
    weather: Callable[[Weather], Clients],
) -> None:
    aws = weather(Weather(seed="1", write_conflict_rate=0.4, lost_answer_rate=0.4))
    aws.s3.create_bucket(Bucket="b-1")
    address = Address(endpoint_url=f"http://{aws._address.netloc}")
    with closing(connect(address, connections=1, within_s=None)) as services:
        for number in range(6):
            services.write_once("b-1", f"{number}", b"{}", replaces=None)
        with pytest.raises(AppError) as error:
            services.write_once("b-1", "0", b'{"other": 1}', replaces=None)
    assert error.value.code is ErrorCode.CONFLICT
    counts = aws.counts()
    assert counts["write conflict"] > 0
    assert counts["answer lost"] > 0
