"""`iam: {create: true}`: the least that a function needs, made and removed with it."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws
from moto.awslambda.exceptions import ValidationException
from moto.awslambda.models import FunctionUrlConfig

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.facts import Facts
from fdl.plan.functions import Code
from fdl.plan.plan import Action, Step
from fdl.plan.resources import DeployTarget, FunctionResource, Role
from fdl.plan.roles import role_name, role_of
from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.deploy.roles import IamRoles
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.cli.commands.objects import ls
from orchgpu.deploy.deployment import execute, prepare, prepare_removal, prepare_rollback

AWS = DeployTarget(account="123456789012", region="eu-west-1")
LIMIT = "arn:aws:iam::123456789012:policy/limit"
ANYTHING = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
)
BLAST = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      output: [{path: answers/tsv}, {path: more}]
      vpc: {SubnetIds: [subnet-1], SecurityGroupIds: [sg-1]}
    iam: {create: true}
    gpu: {}
    job: {input: {path: queries/in}}
"""
PLAIN = """\
functions:
  aws:
  - lambda:
      name: grep
      init_script: run.sh
      input: [{path: texts/in}]
      output: [{path: found/out}]
    iam: {create: true}
"""


def allowed(text: str) -> dict[str, tuple[list[str], list[str]]]:
    (function,) = parse(text).functions.aws
    statements = role_of(function, AWS).policy["Statement"]
    return {s["Sid"]: (s["Action"], s["Resource"]) for s in statements}


def test_a_job_function_may_do_what_its_jobs_need() -> None:
    found = allowed(BLAST)
    assert found["Inputs"][1] == ["arn:aws:s3:::queries/in/*"]
    assert found["Outputs"][1] == ["arn:aws:s3:::answers/tsv/*", "arn:aws:s3:::more/*"]
    assert found["Envelopes"][1] == [
        "arn:aws:s3:::blast-intermediate/staging/blast/*",
        "arn:aws:s3:::blast-intermediate/results/*",
        "arn:aws:s3:::blast-intermediate/attempts/*",
    ]
    assert found["Failures"] == (
        ["sqs:SendMessage"],
        ["arn:aws:sqs:eu-west-1:123456789012:blast-done"],
    )
    assert found["Absence"][1] == ["arn:aws:s3:::queries", "arn:aws:s3:::blast-intermediate"]
    assert found["Logs"][1] == ["arn:aws:logs:eu-west-1:123456789012:log-group:/aws/lambda/blast:*"]


def test_only_network_interfaces_have_no_name() -> None:
    for text in (BLAST, PLAIN):
        wild = [sid for sid, (_, resources) in allowed(text).items() if "*" in resources]
        assert wild == (["Network", "NetworkNotByCode"] if text is BLAST else [])
        assert not any("*" in action for actions, _ in allowed(text).values() for action in actions)
    without_jobs = PLAIN + "    job: none\n"
    assert list(allowed(without_jobs)) == ["Inputs", "Outputs", "Logs", "Failures", "Absence"]
    assert allowed(without_jobs)["Failures"][1][0].endswith(":grep-dlq")


def test_the_function_runs_under_it_on_aws_only() -> None:
    (function,) = parse(PLAIN).functions.aws
    made_role = "grep-eu-west-1"
    for local in (False, True):
        place = replace(AWS, local=local)
        made = desired(function, place, Code(sha256="0" * 64, size=1), Budget()).resources
        (code,) = [r for r in made if isinstance(r, FunctionResource)]
        assert [r.name for r in made if isinstance(r, Role)] == ([] if local else [made_role])
        assert code.role.endswith(
            "role/orchgpu-function" if local else f"role/orchgpu/functions/{made_role}"
        )
    errors = [n for n in lint(parse(PLAIN), place=AWS) if n.severity is Severity.ERROR]
    assert errors == []


def test_names_fit_into_iam() -> None:
    names = [
        role_name("f" * 46, "eu-west-1"),
        *(role_name("f" * 60 + n, "eu-west-1") for n in "ab"),
    ]
    assert max(map(len, names)) == 64
    assert len(set(names)) == 3


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A mocked AWS without any endpoint: what the code takes for the real one."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "AWS_PROFILE", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(FunctionUrlConfig, "__init__", _made)
    monkeypatch.setattr(FunctionUrlConfig, "update", _changed)
    with mock_aws():
        yield


_make, _change = FunctionUrlConfig.__init__, FunctionUrlConfig.update


def _made(self: FunctionUrlConfig, function: Any, config: dict[str, Any]) -> None:
    _require_origins(config)
    _make(self, function, config)
    self.url += "/"  # as AWS has it


def _changed(self: FunctionUrlConfig, new_config: dict[str, Any]) -> None:
    """As AWS does it, and moto does not: an empty structure takes CORS away."""
    _require_origins(new_config)
    _change(self, new_config)
    self.config |= {name: new_config[name] for name in ("Cors", "InvokeMode") if name in new_config}


def _require_origins(config: dict[str, Any]) -> None:
    """AWS refuses an empty list, which moto takes."""
    if config.get("Cors", {}).get("AllowOrigins") == []:
        raise ValidationException("[]", "cors.allowOrigins", "it has no member")


def test_a_role_is_changed_and_deleted_again(aws: None) -> None:
    client = boto3.client("iam")
    roles, role = IamRoles(lambda: AwsClient(client)), role_of(parse(PLAIN).functions.aws[0], AWS)
    assert roles.observe(role.name) is None
    roles.put(role)
    assert roles.observe(role.name) == role
    smaller = replace(role, policy={**role.policy, "Statement": role.policy["Statement"][:1]})
    roles.put(smaller)
    assert roles.observe(role.name) == smaller
    client.delete_role_policy(RoleName=role.name, PolicyName="orchgpu")
    assert roles.observe(role.name) == replace(role, policy={})
    for _ in range(2):
        roles.delete(role.name)
    assert roles.observe(role.name) is None
    client.close()


def test_a_whole_deploy_on_aws_makes_its_role_and_removes_it(aws: None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "f.yaml").write_text(PLAIN)
    cloud = AwsCloud(lambda service: resolve(service))
    assert not cloud.place.local
    cloud.client("iam").create_policy(PolicyName="orchgpu-functions", PolicyDocument=ANYTHING)
    steps: list[Any] = []

    def tell(_number: int, _count: int, step: Step) -> None:
        steps.append((step.action, step.resource.kind))

    execute(prepare(tmp_path / "f.yaml", cloud, Budget()), cloud, tell)
    kinds = [kind for _, kind in steps]
    assert kinds.index("role") < kinds.index("function")
    assert prepare(tmp_path / "f.yaml", cloud, Budget()).plan.empty
    steps.clear()
    execute(prepare_removal(["grep"], cloud), cloud, tell)
    assert (Action.DELETE, "role") in steps
    assert prepare_removal(["grep"], cloud).plan.empty
    cloud.close()


def test_ls_shows_urls_and_is_not_ended_by_one_that_is_gone(aws: None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    file = tmp_path / "f.yaml"
    file.write_text(f"{PLAIN}    http: true\n")
    cloud = AwsCloud(lambda service: resolve(service))
    cloud.client("iam").create_policy(PolicyName="orchgpu-functions", PolicyDocument=ANYTHING)
    execute(prepare(file, cloud, Budget()), cloud, lambda *_: None)
    functions = cloud.client("lambda")

    def shown() -> Any:
        answer = CliRunner().invoke(ls.command, ["--json"], catch_exceptions=False)
        return json.loads(answer.stdout)["functions"][0].get("url", "")

    made = functions.get_function_url_config(FunctionName="grep-http")["FunctionUrl"]
    assert (made, made[-1]) == (f"{shown()}/", "/"), "as in `$URL/v1`"
    functions.delete_function_url_config(FunctionName="grep-http")
    assert shown() == ""
    cloud.close()


def test_a_url_is_made_changed_and_removed_with_its_function(aws: None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    file = tmp_path / "f.yaml"
    cloud = AwsCloud(lambda service: resolve(service))
    cloud.client("iam").create_policy(PolicyName="orchgpu-functions", PolicyDocument=ANYTHING)
    functions = cloud.client("lambda")

    def deployed(http: str) -> list[str]:
        file.write_text(f"{PLAIN}    {http}\n")
        prepared = prepare(file, cloud, Budget())
        execute(prepared, cloud, lambda *_: None)
        assert prepare(file, cloud, Budget()).plan.empty
        return [step.sentence() for step in prepared.plan.steps]

    def url() -> Any:
        return functions.get_function_url_config(FunctionName="grep-http")

    made = deployed("api_gateway: {name: x}")
    assert [one for one in made if "grep-http" in one] == [
        "+ role grep-http-eu-west-1",
        "+ function grep-http",
        "+ function-url grep-http",
    ]
    assert (url()["AuthType"], url().get("Cors") or {}) == ("AWS_IAM", {})
    assert deployed("http: {origins: [https://lab.example]}")[0].startswith("~ function-url")
    assert url()["Cors"]["AllowOrigins"] == ["https://lab.example"]
    functions.update_function_url_config(FunctionName="grep-http", AuthType="NONE")
    assert any("auth NONE → AWS_IAM" in one for one in deployed("http: true"))
    assert (url()["AuthType"], url().get("Cors") or {}) == ("AWS_IAM", {})
    functions.update_function_url_config(FunctionName="grep-http", InvokeMode="RESPONSE_STREAM")
    assert any("RESPONSE_STREAM → BUFFERED" in one for one in deployed("http: true"))
    settings = functions.get_function_configuration(FunctionName="grep-http")
    assert (
        settings["CodeSha256"]
        == functions.get_function_configuration(FunctionName="grep")["CodeSha256"]
    ), "one package, so that a revision has all its code"
    gone = deployed("http: false")
    assert [one for one in gone if one.startswith("-")] == [
        "- function-url grep-http",
        "- function grep-http",
        "- role grep-http-eu-west-1",
    ]
    execute(prepare_rollback("grep", None, cloud), cloud, lambda *_: None)
    assert url()["AuthType"] == "AWS_IAM"
    execute(prepare_removal(["grep"], cloud), cloud, lambda *_: None)
    assert prepare_removal(["grep"], cloud).plan.empty
    assert functions.list_functions()["Functions"] == []
    cloud.close()


KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b"


def test_a_role_is_named_after_its_region() -> None:
    """Defect 9: roles are of the whole account, functions of one region."""
    (function,) = parse(PLAIN).functions.aws
    there = replace(AWS, region="us-east-1")
    assert role_of(function, AWS).name == "grep-eu-west-1"
    assert role_of(function, there).name == "grep-us-east-1"


def test_the_code_of_a_function_may_not_use_the_rights_on_interfaces() -> None:
    """Defect 13: AWS's documented Deny; Lambda's own calls have no function as their source."""
    statements = role_of(parse(BLAST).functions.aws[0], AWS).policy["Statement"]
    (denied,) = [s for s in statements if s["Effect"] == "Deny"]
    (network,) = [s for s in statements if s["Sid"] == "Network"]
    assert set(network["Action"]) <= set(denied["Action"])
    assert denied["Condition"] == {
        "ArnEquals": {
            "lambda:SourceFunctionArn": ["arn:aws:lambda:eu-west-1:123456789012:function:blast"]
        }
    }


def test_a_function_may_use_the_keys_of_its_buckets_and_variables() -> None:
    """Defect 14: with a customer's key every read of an input was refused."""
    (function,) = parse(BLAST).functions.aws
    found = {"queries": KEY + "1", "more": KEY + "2", "blast-intermediate": KEY + "3"}
    policy = role_of(function, AWS, Facts(bucket_keys=found)).policy
    by_sid = {s["Sid"]: s for s in policy["Statement"]}
    assert by_sid["Decryption"]["Action"] == ["kms:Decrypt"]
    assert set(by_sid["Decryption"]["Resource"]) == set(found.values())
    assert by_sid["Encryption"]["Resource"] == [KEY + "2", KEY + "3"]
    (declared,) = parse(
        BLAST.replace("{path: more}", f"{{path: more, kms_key: '{KEY}4'}}").replace(
            "vpc:", f"kms_key: '{KEY}5'\n      vpc:"
        )
    ).functions.aws
    by_sid = {s["Sid"]: s for s in role_of(declared, AWS).policy["Statement"]}
    assert by_sid["Decryption"]["Resource"] == [KEY + "5", KEY + "4"]
    assert by_sid["Encryption"]["Resource"] == [KEY + "4"]
    assert "Decryption" not in allowed(BLAST)


def test_logs_and_traces_go_where_the_file_wants_them() -> None:
    text = BLAST.replace("vpc:", "tracing: Active\n      logging: {group: team/gpu}\n      vpc:")
    found = allowed(text)
    assert found["Traces"] == (["xray:PutTraceSegments", "xray:PutTelemetryRecords"], ["*"])
    assert found["Logs"][1] == ["arn:aws:logs:eu-west-1:123456789012:log-group:team/gpu:*"]


def test_path_boundary_and_tags_of_a_role(aws: None) -> None:
    """Defect 9: organisations demand a boundary, or a path."""
    text = (
        PLAIN.replace("create: true", "create: true, path: /team/, permissions_boundary: '%s'")
        % "arn:aws:iam::123456789012:policy/limit"
    )
    client = boto3.client("iam")
    roles, role = IamRoles(lambda: AwsClient(client)), role_of(parse(text).functions.aws[0], AWS)
    assert (role.path, role.full_name) == ("/team/", "team/grep-eu-west-1")
    roles.put(role)
    assert roles.observe(role.name) == role
    client.tag_role(RoleName=role.name, Tags=[{"Key": "theirs", "Value": "x"}])
    bare = replace(role, boundary=LIMIT, tags={"createdby": "orchgpu"})
    roles.put(bare)
    assert roles.observe(role.name) == bare
    kept = client.list_role_tags(RoleName=role.name)["Tags"]
    assert {"Key": "theirs", "Value": "x"} in kept
    roles.put(role)
    assert roles.observe(role.name) == role
    client.close()


def test_without_its_boundary_no_role_is_made(
    aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "f.yaml").write_text(PLAIN)
    with closing(AwsCloud(lambda service: resolve(service))) as cloud:
        with pytest.raises(AppError, match="orchgpu iam boundary FILE") as caught:
            prepare(tmp_path / "f.yaml", cloud, Budget())
        assert caught.value.code is ErrorCode.NOT_FOUND
        assert "policy/orchgpu-functions does not exist" in caught.value.message
        monkeypatch.setenv("ORCHGPU_PERMISSIONS_BOUNDARY", LIMIT)
        with pytest.raises(AppError, match="policy/limit does not exist"):
            prepare(tmp_path / "f.yaml", cloud, Budget())
        cloud.client("iam").create_policy(PolicyName="limit", PolicyDocument=ANYTHING)
        prepared = prepare(tmp_path / "f.yaml", cloud, Budget())
    [role] = [step.resource for step in prepared.plan.steps if isinstance(step.resource, Role)]
    assert role.boundary == LIMIT
