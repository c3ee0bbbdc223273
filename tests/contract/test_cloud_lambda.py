"""Lambda as a deployment and an orchestrator use it, on the embedded cloud and on moto."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.contract.zips import zipped

Cloud = Any
Refused = Callable[[Callable[[], Any]], str]

ECHO = "def handle(event, context): return {'event': event, 'id': context.aws_request_id}"
FAIL = "def handle(event, context): raise ValueError('told to')"
COPY = """
import os, urllib.parse
import boto3

s3 = boto3.client("s3")

def handle(event, context):
    entity = event["Records"][0]["s3"]
    bucket, key = entity["bucket"]["name"], urllib.parse.unquote_plus(entity["object"]["key"])
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3.put_object(Bucket=bucket, Key="out/" + key.removeprefix("in/"), Body=body.upper())
"""


def _invoke(cloud: Cloud, name: str, payload: Any = None, **arguments: Any) -> dict[str, Any]:
    answer = cloud.client("lambda").invoke(
        FunctionName=name, Payload=json.dumps(payload or {}), **arguments
    )
    with answer["Payload"] as body:
        return {**answer, "Payload": json.loads(body.read() or b"null")}


# --- control plane


def test_a_function_is_described_as_it_was_made(cloud: Cloud) -> None:
    name = cloud.function(
        ECHO, Environment={"Variables": {"A": "b"}}, MemorySize=256, Timeout=7, Tags={"t": "1"}
    )
    answer = cloud.client("lambda").get_function(FunctionName=name)
    found = answer["Configuration"]
    assert found["FunctionArn"].endswith(f":function:{name}")
    assert (found["Timeout"], found["MemorySize"], found["State"]) == (7, 256, "Active")
    assert (found["Handler"], found["Runtime"]) == ("app.handle", "python3.11")
    assert found["Environment"]["Variables"] == {"A": "b"}
    assert (found["PackageType"], answer["Tags"]) == ("Zip", {"t": "1"})


def test_the_code_can_be_fetched(cloud: Cloud) -> None:
    name = cloud.function(ECHO)
    answer = cloud.client("lambda").get_function(FunctionName=name)
    with urllib.request.urlopen(answer["Code"]["Location"]) as code:
        digest = base64.b64encode(hashlib.sha256(code.read()).digest()).decode()
    assert digest == answer["Configuration"]["CodeSha256"]


def test_settings_and_code_are_changed_apart(cloud: Cloud) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    before = functions.get_function_configuration(FunctionName=name)
    functions.update_function_configuration(
        FunctionName=name, Timeout=9, Environment={"Variables": {"X": "y"}}
    )
    functions.update_function_code(FunctionName=name, ZipFile=zipped(FAIL))
    after = functions.get_function_configuration(FunctionName=name)
    assert (after["Timeout"], after["Environment"]["Variables"]) == (9, {"X": "y"})
    assert after["CodeSha256"] != before["CodeSha256"]


def test_unknown_functions_are_not_found(cloud: Cloud, refused: Refused) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    functions.delete_function(FunctionName=name)
    for word in ("get_function", "get_policy", "delete_function"):
        call = getattr(functions, word)
        assert refused(partial(call, FunctionName=name)) == "ResourceNotFoundException"


def test_unknown_functions_cannot_be_invoked(cloud: Cloud, refused: Refused) -> None:
    invoke = cloud.client("lambda").invoke
    assert refused(lambda: invoke(FunctionName="unknown")) == "ResourceNotFoundException"


def test_a_name_is_taken_once(cloud: Cloud, refused: Refused) -> None:
    name = cloud.function(ECHO)
    code = refused(lambda: cloud.function(ECHO, FunctionName=name))
    assert code == "ResourceConflictException"


def test_bad_code_is_refused(cloud: Cloud, refused: Refused) -> None:
    code = refused(lambda: cloud.function(ECHO, Code={"ZipFile": b"not a zip"}))
    assert code == "InvalidParameterValueException"


def test_reserved_variables_are_refused(cloud: Cloud, refused: Refused) -> None:
    variables = {"Variables": {"AWS_REGION": "moon-1"}}
    code = refused(lambda: cloud.function(ECHO, Environment=variables))
    assert code == "InvalidParameterValueException"


def test_permissions_come_and_go(cloud: Cloud, refused: Refused) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    functions.add_permission(
        FunctionName=name,
        StatementId="s3",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn="arn:aws:s3:::b",
        SourceAccount=cloud.account,
    )
    (statement,) = json.loads(functions.get_policy(FunctionName=name)["Policy"])["Statement"]
    assert (statement["Sid"], statement["Principal"]) == ("s3", {"Service": "s3.amazonaws.com"})
    functions.remove_permission(FunctionName=name, StatementId="s3")


def test_event_invoke_config(cloud: Cloud, refused: Refused) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    get = functions.get_function_event_invoke_config
    assert refused(lambda: get(FunctionName=name)) == "ResourceNotFoundException"
    _, arn = cloud.queue()
    functions.put_function_event_invoke_config(
        FunctionName=name,
        MaximumRetryAttempts=0,
        MaximumEventAgeInSeconds=60,
        DestinationConfig={"OnFailure": {"Destination": arn}},
    )
    found = get(FunctionName=name)
    assert (found["MaximumRetryAttempts"], found["MaximumEventAgeInSeconds"]) == (0, 60)
    assert found["DestinationConfig"]["OnFailure"]["Destination"] == arn
    functions.delete_function_event_invoke_config(FunctionName=name)
    assert refused(lambda: get(FunctionName=name)) == "ResourceNotFoundException"


def test_unknown_failure_destinations_are_refused(cloud: Cloud, refused: Refused) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    arn = f"arn:aws:sqs:us-east-1:{cloud.account}:unknown"
    target = {"OnFailure": {"Destination": arn}}
    put = functions.put_function_event_invoke_config
    code = refused(lambda: put(FunctionName=name, DestinationConfig=target))
    assert code == "InvalidParameterValueException"


def test_concurrency_and_tags(cloud: Cloud) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=3)
    found = functions.get_function(FunctionName=name)
    assert found["Concurrency"]["ReservedConcurrentExecutions"] == 3
    functions.delete_function_concurrency(FunctionName=name)
    arn = found["Configuration"]["FunctionArn"]
    functions.tag_resource(Resource=arn, Tags={"a": "1", "b": "2"})
    functions.untag_resource(Resource=arn, TagKeys=["a"])
    assert functions.list_tags(Resource=arn)["Tags"] == {"b": "2"}
    assert name in [f["FunctionName"] for f in functions.list_functions()["Functions"]]


# --- runs


def test_a_handler_answers(cloud: Cloud) -> None:
    name = cloud.function(ECHO)
    answer = _invoke(cloud, name, {"a": [1, "ü"]})
    assert "FunctionError" not in answer
    assert answer["Payload"]["event"] == {"a": [1, "ü"]}
    assert _invoke(cloud, name, InvocationType="DryRun")["StatusCode"] == 204


def test_an_error_is_returned(cloud: Cloud) -> None:
    answer = _invoke(cloud, cloud.function(FAIL))
    assert answer["FunctionError"] == "Unhandled"
    assert answer["Payload"]["errorType"] == "ValueError"
    assert answer["Payload"]["errorMessage"] == "told to"


def test_a_timeout_is_returned(cloud: Cloud) -> None:
    name = cloud.function("import time\ndef handle(e, c): time.sleep(60)", Timeout=1)
    answer = _invoke(cloud, name)
    assert answer["FunctionError"] == "Unhandled"
    assert answer["Payload"]["errorType"] == "Sandbox.Timedout"
    assert answer["Payload"]["errorMessage"].endswith("Task timed out after 1.00 seconds")


def test_logs_are_kept(cloud: Cloud) -> None:
    name = cloud.function("def handle(e, c): print('said', e['what'])")
    answer = _invoke(cloud, name, {"what": "this"}, LogType="Tail")
    assert "said this" in base64.b64decode(answer["LogResult"]).decode()
    logs, group = cloud.client("logs"), f"/aws/lambda/{name}"
    (found,) = logs.filter_log_events(logGroupName=group, filterPattern='"said"')["events"]
    assert found["message"] == "said this"
    events = logs.get_log_events(logGroupName=group, logStreamName=found["logStreamName"])
    lines = [event["message"] for event in events["events"]]
    assert (lines[0].split()[0], lines[1]) == ("START", "said this")


def test_other_programs_write_to_logs(
    cloud: Cloud, refused: Callable[[Callable[[], Any]], str]
) -> None:
    logs, group = cloud.client("logs"), f"/aws/lambda/{cloud.unique('w')}"
    where = {"logGroupName": group, "logStreamName": "host/gpu-a/lease-1"}
    assert refused(lambda: logs.create_log_stream(**where)) == "ResourceNotFoundException"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(**where)
    again = refused(lambda: logs.create_log_stream(**where))
    assert again == "ResourceAlreadyExistsException"
    now_ms = int(time.time() * 1000)
    events = [{"timestamp": now_ms + at, "message": f"line {at}"} for at in range(3)]
    answer = logs.put_log_events(**where, logEvents=events)
    assert "rejectedLogEventsInfo" not in answer
    found = logs.filter_log_events(logGroupName=group)["events"]
    assert [(one["logStreamName"], one["message"]) for one in found] == [
        (where["logStreamName"], event["message"]) for event in events
    ]
    backwards = refused(lambda: logs.put_log_events(**where, logEvents=events[::-1]))
    assert backwards == "InvalidParameterException"
    old = [{"timestamp": now_ms - 15 * 86_400_000, "message": "old"}]
    assert logs.put_log_events(**where, logEvents=old)["rejectedLogEventsInfo"]
    assert len(logs.filter_log_events(logGroupName=group)["events"]) == 3


def test_an_event_goes_to_the_failure_destination(cloud: Cloud) -> None:
    functions, name = cloud.client("lambda"), cloud.function(FAIL)
    url, arn = cloud.queue()
    functions.put_function_event_invoke_config(
        FunctionName=name,
        MaximumRetryAttempts=0,
        DestinationConfig={"OnFailure": {"Destination": arn}},
    )
    assert _invoke(cloud, name, {"a": 1}, InvocationType="Event")["StatusCode"] == 202
    (record,) = cloud.bodies(url, 1, wait_s=cloud.patience_s)
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["requestContext"]["functionArn"].endswith(f":function:{name}:$LATEST")
    assert record["requestPayload"] == {"a": 1}
    assert record["responseContext"]["functionError"] == "Unhandled"
    assert record["responsePayload"]["errorMessage"] == "told to"


def test_an_s3_event_runs_the_function(cloud: Cloud, refused: Refused) -> None:
    s3, functions = cloud.client("s3"), cloud.client("lambda")
    name, bucket = cloud.function(COPY, MemorySize=256), cloud.bucket()
    arn = functions.get_function(FunctionName=name)["Configuration"]["FunctionArn"]
    prefix = {"Key": {"FilterRules": [{"Name": "prefix", "Value": "in/"}]}}
    rule = {"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"], "Filter": prefix}
    wanted = {
        "Bucket": bucket,
        "NotificationConfiguration": {"LambdaFunctionConfigurations": [rule]},
    }
    configure = s3.put_bucket_notification_configuration
    assert refused(lambda: configure(**wanted)) == "InvalidArgument"
    functions.add_permission(
        FunctionName=name,
        StatementId="s3",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn=f"arn:aws:s3:::{bucket}",
    )
    configure(**wanted)
    s3.put_object(Bucket=bucket, Key="in/a b+ü.txt", Body=b"shout")
    ends_s = time.monotonic() + cloud.patience_s
    while not (found := s3.list_objects_v2(Bucket=bucket, Prefix="out/").get("Contents")):
        assert time.monotonic() < ends_s, "the function did not write"
        time.sleep(0.05)
    assert found[0]["Key"] == "out/a b+ü.txt"
    with s3.get_object(Bucket=bucket, Key=found[0]["Key"])["Body"] as body:
        assert body.read() == b"SHOUT"


@pytest.mark.parametrize("role", ["contract", "other"])
def test_roles(cloud: Cloud, refused: Refused, role: str) -> None:
    iam = cloud.client("iam")
    if role == "other":
        assert refused(lambda: iam.get_role(RoleName=role)) == "NoSuchEntity"
        return
    statement = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_role_policy(RoleName=role, PolicyName="p", PolicyDocument=policy)
    assert iam.get_role(RoleName=role)["Role"]["Arn"].endswith(f":role/{role}")
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == ["p"]
    iam.delete_role_policy(RoleName=role, PolicyName="p")


# --- settings of AWS beside code, memory and time

KEY = "arn:aws:kms:us-east-1:000000000000:key/0a1b"
SETTINGS: dict[str, Any] = {
    "EphemeralStorage": {"Size": 2048},
    "KMSKeyArn": KEY,
    "TracingConfig": {"Mode": "Active"},
    "LoggingConfig": {
        "LogFormat": "JSON",
        "ApplicationLogLevel": "INFO",
        "SystemLogLevel": "WARN",
        "LogGroup": "team/gpu",
    },
}


def test_settings_are_kept_changed_and_set_back(cloud: Cloud) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO, **SETTINGS)
    found = functions.get_function_configuration(FunctionName=name)
    assert {key: found[key] for key in SETTINGS} == SETTINGS
    plain = {
        "EphemeralStorage": {"Size": 512},
        "KMSKeyArn": "",
        "TracingConfig": {"Mode": "PassThrough"},
        "LoggingConfig": {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{name}"},
    }
    functions.update_function_configuration(FunctionName=name, **plain)
    found = functions.get_function_configuration(FunctionName=name)
    assert not found.get("KMSKeyArn")
    for key in ("EphemeralStorage", "TracingConfig", "LoggingConfig"):
        assert found[key] == plain[key]


def test_an_architecture_comes_with_code(cloud: Cloud) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    functions.update_function_code(FunctionName=name, ZipFile=zipped(ECHO), Architectures=["arm64"])
    found = functions.get_function_configuration(FunctionName=name)
    assert found["Architectures"] == ["arm64"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"EphemeralStorage": {"Size": 10241}}, "ValidationException"),
        ({"KMSKeyArn": "alias/x"}, "ValidationException"),
        ({"TracingConfig": {"Mode": "Always"}}, "ValidationException"),
        ({"LoggingConfig": {"LogFormat": "XML"}}, "ValidationException"),
        ({"LoggingConfig": {"LogFormat": "JSON", "LogGroup": "a b"}}, "ValidationException"),
        ({"LoggingConfig": {"SystemLogLevel": "INFO"}}, "InvalidParameterValueException"),
        ({"Architectures": ["riscv"]}, "ValidationException"),
        ({"Tags": {"aws:x": "y"}}, "InvalidParameterValueException"),
        ({"Tags": {"a*": "y"}}, "InvalidParameterValueException"),
        ({"Tags": {f"t{n}": "" for n in range(51)}}, "InvalidParameterValueException"),
    ],
)
def test_settings_that_aws_refuses_are_refused(
    cloud: Cloud, refused: Refused, settings: dict[str, Any], code: str
) -> None:
    assert refused(lambda: cloud.function(ECHO, **settings)) == code


def test_reserved_concurrency_leaves_some_for_others(cloud: Cloud, refused: Refused) -> None:
    functions, name, other = cloud.client("lambda"), cloud.function(ECHO), cloud.function(ECHO)

    def reserve(function: str, count: int) -> Any:
        return functions.put_function_concurrency(
            FunctionName=function, ReservedConcurrentExecutions=count
        )

    limit = functions.get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    most = limit - min(100, limit // 2)
    assert refused(lambda: reserve(name, most + 1)) == "InvalidParameterValueException"
    reserve(name, most - 1)
    assert refused(lambda: reserve(other, 2)) == "InvalidParameterValueException"
    assert _invoke(cloud, other)["StatusCode"] == 200, "the rest of the limit is left"
    settings = functions.get_account_settings()["AccountLimit"]
    assert settings["UnreservedConcurrentExecutions"] == limit - most + 1
    functions.delete_function_concurrency(FunctionName=name)
    reserve(other, 2)


def test_a_function_logs_to_the_group_of_its_settings(cloud: Cloud) -> None:
    name = cloud.function("def handle(event, context): print('hello')", **SETTINGS)
    _invoke(cloud, name)
    events = cloud.client("logs").filter_log_events(logGroupName="team/gpu")["events"]
    assert "hello" in "".join(event["message"] for event in events)


# --- event source mappings

#: Reports the messages whose body is not "good" as failed.
CHOOSE = """
def handle(event, context):
    failed = [r["messageId"] for r in event["Records"] if r["body"] != "good"]
    return {"batchItemFailures": [{"itemIdentifier": name} for name in failed]}
"""


def test_an_event_source_mapping_comes_and_goes(cloud: Cloud, refused: Refused) -> None:
    functions, name = cloud.client("lambda"), cloud.function(ECHO)
    _, arn = cloud.queue(VisibilityTimeout="60")
    made = functions.create_event_source_mapping(
        FunctionName=name,
        EventSourceArn=arn,
        BatchSize=1,
        FunctionResponseTypes=["ReportBatchItemFailures"],
        ScalingConfig={"MaximumConcurrency": 5},
    )
    found = functions.get_event_source_mapping(UUID=made["UUID"])
    assert found["FunctionArn"].endswith(f":function:{name}")
    assert (found["EventSourceArn"], found["BatchSize"], found["State"]) == (arn, 1, "Enabled")
    assert found["ScalingConfig"]["MaximumConcurrency"] == 5
    functions.update_event_source_mapping(UUID=made["UUID"], BatchSize=2, Enabled=False)
    listed = functions.list_event_source_mappings(FunctionName=name, EventSourceArn=arn)
    (one,) = listed["EventSourceMappings"]
    assert (one["UUID"], one["BatchSize"], one["State"]) == (made["UUID"], 2, "Disabled")
    gone = functions.delete_event_source_mapping(UUID=made["UUID"])
    assert gone["State"] == "Deleting"
    get = partial(functions.get_event_source_mapping, UUID=made["UUID"])
    assert refused(get) == "ResourceNotFoundException"


def test_a_mapping_deletes_what_its_function_finished(cloud: Cloud) -> None:
    functions, name, sqs = cloud.client("lambda"), cloud.function(CHOOSE), cloud.client("sqs")
    _, dead = cloud.queue()
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "2"})
    url, arn = cloud.queue(VisibilityTimeout="60", RedrivePolicy=redrive)
    made = functions.create_event_source_mapping(
        FunctionName=name,
        EventSourceArn=arn,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    for body in ("good", "bad"):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts: dict[str, str] = {}
    ends_s = time.monotonic() + cloud.patience_s
    while time.monotonic() < ends_s and list(counts.values()) != ["0", "1"]:
        time.sleep(0.2)
        counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    functions.delete_event_source_mapping(UUID=made["UUID"])
    assert list(counts.values()) == ["0", "1"]  # the bad one stays hidden
