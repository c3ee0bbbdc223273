"""The deploy commands against a cloud over HTTP: idempotent, resumable, careful."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import localstack_client.session
import pytest

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import boto3_client, resolve
from orchgpu.cli.commands.jobs import logs
from orchgpu.cli.commands.jobs.jobs import notes_of_functions
from orchgpu.cli.commands.objects import put
from orchgpu.cli.commands.operation import doctor
from orchgpu.core.function import Function
from orchgpu.deploy.deployment import execute, prepare, warm_up
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.places import At, outputs_of
from tests.commandline import Done, done

FDL = """\
functions:
  aws:
  - lambda:
      name: {name}
      memory: 256
      init_script: run.sh
      output: [{{path: {name}-out/tsv, suffix: [.tsv]}}]
    gpu: {{memory: 1GiB, kinds: [cpu]}}
    job: {{input: {{path: {name}-in/queries}}}}
"""
PLAIN = """\
functions:
  aws:
  - lambda:
      name: {name}
      init_script: run.sh
      input: [{{storage_provider: s3, path: {name}-data/in}}]
      output: [{{storage_provider: s3, path: {name}-data/out}}]
    job: none
"""
SHAPES = sorted((Path(__file__).parents[1] / "unit" / "fdl" / "shapes").glob("*.yaml"))
PROGRAMS = {"moto": "orchgpu.local.moto", "embedded": "local_cloud.server"}


@pytest.fixture(scope="module", params=PROGRAMS)
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cloud")
    ready = folder / "ready.json"
    state = ["--state", str(folder / "state")] if request.param == "embedded" else []
    command = [sys.executable, "-m", PROGRAMS[request.param], "--ready-file", str(ready), *state]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            ends_s = time.monotonic() + 60
            while not ready.exists():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < ends_s, (folder / "log").read_text()
                time.sleep(0.02)
            yield json.loads(ready.read_text())["endpoint"]
        finally:
            process.terminate()
            process.wait(10)


class Bench:
    """One cloud, one folder with a script, and the commands as a user gives them."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.endpoint = endpoint
        self.folder = folder
        self.clients = {name: self._client(name) for name in ("s3", "sqs", "lambda")}
        script = folder / "run.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        script.chmod(0o755)

    def _client(self, service: str) -> Any:
        return boto3_client(service, resolve(service, endpoint_url=self.endpoint))

    def write(self, text: str, name: str) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(text.format(name=name))
        return path

    def run(self, *arguments: str | Path, status: int = 0, text: str | None = None) -> Done:
        words = [str(a) for a in (*arguments, "--endpoint-url", self.endpoint)]
        result = done(words, text or "")
        assert result.exit_code == status, result.output
        return result

    def cloud(self) -> AwsCloud:
        return AwsCloud(lambda service: resolve(service, endpoint_url=self.endpoint))

    def arn(self, queue_url: str) -> str:
        answer = self.clients["sqs"].get_queue_attributes(
            QueueUrl=queue_url, AttributeNames=["QueueArn"]
        )
        return str(answer["Attributes"]["QueueArn"])

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture
def bench(endpoint: str, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(endpoint, tmp_path)
    yield made
    made.close()


def test_deploy_twice_then_rm_twice(bench: Bench) -> None:
    file = bench.write(FDL, "blast")
    assert "blast: packs 1 file, 15 B: script/run.sh" in bench.run("plan", file, status=2).output
    assert "blast: deployed" in bench.run("deploy", file).output
    assert "plan: nothing to do" in bench.run("plan", file).output
    assert "blast: already deployed" in bench.run("deploy", file).output
    assert "blast: removed" in bench.run("rm", file).output
    assert "blast: not deployed" in bench.run("rm", file).output
    unknown = bench.run("rm", "blast", status=3)
    assert "nothing named 'blast' is deployed here" in unknown.stderr
    with pytest.raises(bench.clients["lambda"].exceptions.ResourceNotFoundException):
        bench.clients["lambda"].get_function(FunctionName="blast")


def test_a_deploy_makes_all_that_the_orchestrator_needs(bench: Bench) -> None:
    bench.run("deploy", bench.write(FDL, "needs"))
    s3, sqs, lambda_ = bench.clients["s3"], bench.clients["sqs"], bench.clients["lambda"]
    state = bench.cloud().place.state_bucket
    body = s3.get_object(Bucket=state, Key="functions/needs.json")["Body"].read()
    record = decode(Function, json.loads(body))
    found = (record.name, record.input_bucket, record.input_prefix)
    assert found == ("needs", "needs-in", "queries")
    assert record.request.memory_mib == 1024
    assert s3.get_bucket_versioning(Bucket="needs-in")["Status"] == "Enabled"
    attributes = sqs.get_queue_attributes(QueueUrl=record.queue_url, AttributeNames=["All"])
    redrive = json.loads(attributes["Attributes"]["RedrivePolicy"])
    assert int(redrive["maxReceiveCount"]) == 1000
    config = lambda_.get_function_event_invoke_config(FunctionName="needs")
    assert (config["MaximumRetryAttempts"], config["MaximumEventAgeInSeconds"]) == (0, 60)
    s3.put_object(Bucket="needs-in", Key="queries/a b.fasta", Body=b">q")
    assert "needs-in" in _next_event(sqs, record.queue_url)
    s3.put_object(Bucket="needs-intermediate", Key="results/j1.json", Body=b"{}")
    assert "results/j1.json" in _next_event(sqs, record.completion_url)
    refused = bench.run("rm", "needs", status=4)
    assert "these queues still hold messages: needs-jobs (1)" in refused.output
    done = bench.run("rm", "needs", "--force").output
    assert "bucket needs-in stays: it holds data" in done
    assert s3.get_object(Bucket="needs-in", Key="queries/a b.fasta")["Body"].read() == b">q"


def _next_event(sqs: Any, url: str) -> str:
    """The next message with records, left where it is; test events are taken away."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        answer = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1, VisibilityTimeout=0)
        for message in answer.get("Messages", ()):
            if "s3:TestEvent" not in message["Body"]:
                return str(message["Body"]).replace("%2F", "/")
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    raise AssertionError("no event came")


def test_foreign_notifications_and_buckets_survive(bench: Bench) -> None:
    s3, sqs = bench.clients["s3"], bench.clients["sqs"]
    s3.create_bucket(Bucket="keep-in")
    url = sqs.create_queue(QueueName="theirs")["QueueUrl"]
    arn = bench.arn(url)
    statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    rule = {
        "Id": "theirs",
        "QueueArn": arn,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "photos/"}]}},
    }
    s3.put_bucket_notification_configuration(
        Bucket="keep-in", NotificationConfiguration={"QueueConfigurations": [rule]}
    )

    def ids() -> list[str]:
        found = s3.get_bucket_notification_configuration(Bucket="keep-in")
        return sorted(item["Id"] for item in found.get("QueueConfigurations", ()))

    file = bench.write(FDL, "keep")
    bench.run("deploy", file)
    assert ids() == ["orchgpu-keep-jobs", "theirs"]
    assert "Status" not in s3.get_bucket_versioning(Bucket="keep-in"), "foreign: used as it is"
    bench.run("rm", file)
    assert ids() == ["theirs"]
    taken = file.read_text().replace("keep-in/queries", "keep-in/photos")
    file.write_text(taken)
    assert "the rule 'theirs'" in bench.run("deploy", file, status=4).output


def test_a_foreign_function_of_the_same_name_is_left_alone(bench: Bench) -> None:
    file = bench.write(PLAIN, "owned")
    bench.run("deploy", file)
    cloud = bench.cloud()
    state = cloud.place.state_bucket
    bench.clients["s3"].delete_object(Bucket=state, Key="deployments/owned.json")
    assert "was not made by orchgpu deploy" in bench.run("deploy", file, status=4).output
    assert "nothing named 'owned'" in bench.run("rm", "owned", status=3).output
    assert bench.clients["lambda"].get_function(FunctionName="owned")
    cloud.close()


def test_a_changed_script_and_setting_update_the_function(bench: Bench) -> None:
    file = bench.write(PLAIN, "change")
    bench.run("deploy", file)
    get = bench.clients["lambda"].get_function_configuration
    first = get(FunctionName="change")
    (bench.folder / "run.sh").write_text("#!/bin/sh\necho changed\n")
    file.write_text(file.read_text().replace("init_script", "memory: 1024\n      init_script"))
    planned = bench.run("plan", file, status=2).output
    assert "~ function change: memory_mib 512 → 1024, package" in planned
    bench.run("deploy", file)
    second = get(FunctionName="change")
    assert second["CodeSha256"] != first["CodeSha256"]
    assert second["MemorySize"] == 1024
    assert json.loads(bench.run("plan", file, "--json").stdout)["plan"]["changes"] == 0


@pytest.mark.parametrize("endpoint", ["embedded"], indirect=True)
def test_a_revision_is_restored_and_drift_is_shown(bench: Bench) -> None:
    file = bench.write(FDL, "back")
    bench.run("deploy", file)
    bench.run("deploy", file)  # the same: no revision
    old = bench.clients["lambda"].get_function_configuration(FunctionName="back")
    (bench.folder / "run.sh").write_text("#!/bin/sh\necho changed\n")
    bench.run("deploy", bench.write(FDL.replace("memory: 256", "memory: 512"), "back"))
    kept = json.loads(bench.run("history", "back", "--json").stdout)["revisions"]
    assert [r["number"] for r in kept] == [2, 1]
    assert any("memory_mib 256 → 512" in line for line in kept[0]["changes"])
    bench.clients["lambda"].update_function_configuration(FunctionName="back", Timeout=77)
    planned = bench.run("plan", file, "--refresh", status=2).output
    assert "back: changed since revision 2; to put it back:\n  ~ function back: timeout" in planned
    bench.run("deploy", file)
    assert bench.run("plan", file, "--refresh").stdout.endswith("plan: nothing to do\n")
    assert "back: rollback to 1: done" in bench.run("rollback", "back").output
    new = bench.clients["lambda"].get_function_configuration(FunctionName="back")
    assert (new["CodeSha256"], new["MemorySize"]) == (old["CodeSha256"], 256)
    assert "rollback to 1" in bench.run("history", "back").output
    assert "kept are 1, 2, 3" in bench.run("rollback", "back", "9", status=3).output
    bench.run("rm", file)
    bench.run("history", "back", status=3)


def test_deploys_at_once_lose_no_rule_of_a_bucket_they_share(bench: Bench) -> None:
    bench.clients["s3"].create_bucket(Bucket="common-in")
    text = FDL.replace("{name}-in/queries", "common-in/{name}")
    files = [bench.write(text, f"share{n}") for n in range(3)]
    clouds = [bench.cloud() for _ in files]
    with ThreadPoolExecutor() as pool:
        for done in [
            pool.submit(lambda f, c: execute(prepare(f, c, Budget()), c, lambda *_: None), f, c)
            for f, c in zip(files, clouds, strict=True)
        ]:
            done.result()
    found = bench.clients["s3"].get_bucket_notification_configuration(Bucket="common-in")
    ids = sorted(item["Id"] for item in found["QueueConfigurations"])
    assert ids == [f"orchgpu-share{n}-jobs" for n in range(3)]
    for cloud in clouds:
        cloud.close()
    locks = bench.clients["s3"].list_objects_v2(
        Bucket=bench.cloud().place.state_bucket, Prefix="locks/"
    )
    assert locks["KeyCount"] == 0


class _Cut(Exception):
    pass


@pytest.mark.parametrize("after", [8])  # every step: tests/unit/fdl/test_plan.py
def test_a_deploy_killed_after_any_step_is_taken_up(bench: Bench, after: int) -> None:
    file = bench.write(FDL, f"cut{after}")
    cloud = bench.cloud()

    def stop(number: int, _count: int, _step: object) -> None:
        if number > after:
            raise _Cut

    with contextlib.suppress(_Cut):
        execute(prepare(file, cloud, Budget()), cloud, stop)
    cloud.close()
    bench.run("deploy", file)
    assert "nothing to do" in bench.run("plan", file).output
    bench.run("rm", file)
    with pytest.raises(bench.clients["s3"].exceptions.ClientError):
        bench.clients["s3"].head_bucket(Bucket=f"cut{after}-intermediate")


def test_an_image_functions_script_runs_here(bench: Bench) -> None:
    image = "runtime: image\n      container: {{image: grycap/x}}\n      init_script"
    text = FDL.replace("init_script", image)
    file = bench.write(text, "pictured")
    output = bench.run("deploy", file).output
    assert "the script runs on this machine's files, not in grycap/x" in output
    found = bench.clients["lambda"].get_function(FunctionName="pictured")
    bucket, key = found["Tags"]["orchgpu:package"].removeprefix("s3://").split("/", 1)
    assert bench.clients["s3"].head_object(Bucket=bucket, Key=key)["ContentLength"] > 1000
    assert "nothing to do" in bench.run("plan", file).output
    (bench.folder / "run.sh").write_text("#!/bin/sh\necho changed\n")
    bench.run("deploy", file)
    assert "nothing to do" in bench.run("plan", file).output
    again = bench.clients["lambda"].get_function(FunctionName="pictured")
    assert again["Tags"]["orchgpu:package"] != found["Tags"]["orchgpu:package"]
    bench.run("rm", "pictured")


def test_jobs_report_an_unused_image(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    image = "runtime: image\n      container: {{image: grycap/y}}\n      init_script"
    file = bench.write(FDL.replace("init_script", image), "painted")
    bench.run("deploy", file)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bench.endpoint)
    notes = notes_of_functions()
    said = "image grycap/y is not used here: the script runs on this machine's files"
    assert [notes.of({"function": name}) for name in ("painted", "gone", None)] == [
        said,
        None,
        None,
    ]
    bench.run("rm", file)


def test_run_names_the_input_of_a_plain_function(bench: Bench) -> None:
    two = "input: [{{storage_provider: s3, path: {name}-data/in, suffix: [.a, .b]}}]"
    text = PLAIN.replace("input: [{{storage_provider: s3, path: {name}-data/in}}]", two)
    file = bench.write(text, "simple")
    bench.run("deploy", file)
    with contextlib.closing(JobCloud(bench.endpoint)) as cloud:
        with pytest.raises(AppError, match=r"has no jobs") as refused:
            cloud.function("simple")
        assert refused.value.code is ErrorCode.INVALID
        assert "put FILE simple` uploads to s3://simple-data/in/" in refused.value.message
        with pytest.raises(AppError, match=r"mean 'simple'\?; deployed are .*simple"):
            cloud.function("simpel")
        _plain_functions_are_known_too(cloud)
        bench.run("rm", file)
        with pytest.raises(AppError, match="no function 'simple' is deployed here") as refused:
            cloud.function("simple")
    assert refused.value.code is ErrorCode.NOT_FOUND


def _plain_functions_are_known_too(cloud: JobCloud) -> None:
    """To `ls`, `put`, `get`, `logs` and `doctor`."""
    (found,) = [one for one in cloud.direct_functions() if one.name == "simple"]
    assert found.places == ["s3://simple-data/in/"]
    assert [one.name for one in cloud.direct_functions() if one.name in cloud.served()] == []
    assert cloud.direct_outputs(found) == [("simple-data", "out")]
    assert outputs_of(cloud, "simple") == [At(bucket="simple-data", prefix="out/")]
    assert put._input(cloud, "simple", None, (Path("x.a"), Path("y.b"))).prefix == "in/"
    with pytest.raises(AppError, match="would ignore it"):
        put._input(cloud, "simple", None, (Path("x.c"),))
    assert logs._known_function(cloud, "simple") == "simple"
    assert doctor._deployed(cloud, "simple").endswith("objects in s3://simple-data/in/ start it")


def test_localstack_host_is_enough(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSTACK_HOST", bench.endpoint.removeprefix("http://"))
    file = bench.write(PLAIN, "stack")
    result = done(["deploy", str(file)])
    assert result.exit_code == 0, result.output
    session = localstack_client.session.Session()
    found = session.client("lambda").get_function(FunctionName="stack")
    assert found["Configuration"]["Environment"]["Variables"]["ORCHGPU_MODE"] == "plain"
    bench.run("rm", file)


@pytest.mark.parametrize("endpoint", ["embedded"], indirect=True)
@pytest.mark.parametrize("image", [False, True])
def test_a_deployed_plain_function_really_runs(bench: Bench, image: bool) -> None:
    name = "pictures" if image else "zipped"
    variables = "environment: {{Variables: {{WORD: hi}}}}"
    container = f"runtime: image\n      container: {{{{image: grycap/x, {variables}}}}}"
    text = PLAIN.replace("init_script", container + "\n      init_script")
    file = bench.write(text if image else PLAIN, name)
    (bench.folder / "run.sh").write_text(
        '#!/bin/sh\nwc -c < "$INPUT_FILE_PATH" > "$TMP_OUTPUT_DIR/count"\n'
        'echo "$WORD" > "$TMP_OUTPUT_DIR/word"\n'
    )
    bench.run("deploy", file)
    s3 = bench.clients["s3"]
    s3.put_object(Bucket=f"{name}-data", Key="in/a b+c.txt", Body=b"12345")
    ends_s = time.monotonic() + 60
    while (found := s3.list_objects_v2(Bucket=f"{name}-data", Prefix="out/"))["KeyCount"] < 2:
        assert time.monotonic() < ends_s, "no output came"
        time.sleep(0.05)
    keys = [item["Key"] for item in found["Contents"]]
    bodies = {k.rsplit("/")[-1]: _body(s3, f"{name}-data", k) for k in keys}
    assert bodies == {"count": "5", "word": "hi" if image else ""}


def _body(s3: Any, bucket: str, key: str) -> str:
    return str(s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode().strip())


def test_a_wrong_file_changes_nothing_and_is_named(bench: Bench) -> None:
    file = bench.write(PLAIN.replace("memory", "x") + "    gpus: {{}}\n", "wrong")
    output = bench.run("deploy", file, status=2).output
    assert f"{file}:9:5: error: functions.aws[0]: unknown key 'gpus'" in output
    assert "did you mean 'gpu'?" in output
    bench.run("plan", file, status=1)
    bench.run("deploy", bench.folder / "none.yaml", status=3)


def test_a_cloud_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    cloud = AwsCloud(lambda service: resolve(service, endpoint_url="http://127.0.0.1:9"))
    with pytest.raises(AppError, match="Could not connect"):
        _ = cloud.place
    cloud.close()


@pytest.mark.parametrize("endpoint", ["embedded"], indirect=True)
def test_a_package_goes_through_its_own_bucket(bench: Bench) -> None:
    deployment = "deployment: {{bucket: through-uploads}}\n      init_script"
    file = bench.write(PLAIN.replace("init_script", deployment), "through")
    bench.run("deploy", file)
    assert "nothing to do" in bench.run("plan", file).output
    stored = bench.clients["s3"].list_objects_v2(Bucket="through-uploads")["Contents"]
    assert [item["Key"].split("/")[0] for item in stored] == ["packages"]
    found = bench.clients["lambda"].get_function(FunctionName="through")
    assert found["Tags"]["orchgpu:package"] == f"s3://through-uploads/{stored[0]['Key']}"
    (bench.folder / "run.sh").write_text("#!/bin/sh\necho changed\n")
    bench.run("deploy", file)
    assert "nothing to do" in bench.run("plan", file).output
    bench.run("rm", file)


def test_staged_envelopes_expire_next_to_foreign_rules(bench: Bench) -> None:
    s3 = bench.clients["s3"]
    s3.create_bucket(Bucket="expire-intermediate")
    theirs = {
        "ID": "theirs",
        "Filter": {"Prefix": "old/"},
        "Status": "Enabled",
        "Expiration": {"Days": 30},
    }
    s3.put_bucket_lifecycle_configuration(
        Bucket="expire-intermediate", LifecycleConfiguration={"Rules": [theirs]}
    )

    def rules() -> dict[str, Any]:
        found = s3.get_bucket_lifecycle_configuration(Bucket="expire-intermediate")
        return {rule["ID"]: rule for rule in found["Rules"]}

    file = bench.write(FDL, "expire")
    bench.run("deploy", file)
    ours = rules()["orchgpu-expire-staging"]
    assert (ours["Filter"]["Prefix"], ours["Expiration"]["Days"]) == ("staging/expire/", 1)
    longer = "{{intermediate: {{path: expire-intermediate, expire_days: 7}}, input"
    file = bench.write(FDL.replace("job: {{input", f"job: {longer}"), "expire")
    planned = bench.run("plan", file, status=2).output
    assert "~ expiry expire-intermediate/orchgpu-expire-staging: days 1 → 7" in planned
    bench.run("deploy", file)
    assert rules()["orchgpu-expire-staging"]["Expiration"]["Days"] == 7
    bench.run("rm", file)
    assert list(rules()) == ["theirs"]


@pytest.mark.parametrize("endpoint", ["embedded"], indirect=True)
@pytest.mark.timeout(300)  # many whole deploys
def test_shapes_of_scars_examples_deploy_and_then_plan_nothing(bench: Bench) -> None:
    (bench.folder / "script.sh").write_text("#!/bin/sh\n")
    cloud = bench.cloud()
    layer = "\n      - arn:aws:lambda:us-east-1:123456789012:layer:tools:1"
    for shape in SHAPES:  # Lambda asks for real layers
        (file := bench.folder / shape.name).write_text(shape.read_text().replace(layer, " []"))
        first = prepare(file, cloud, Budget())
        execute(first, cloud, lambda *_: None)
        assert not first.plan.empty
        assert prepare(file, cloud, Budget()).plan.empty, shape.name
    cloud.close()


@pytest.mark.parametrize("endpoint", ["embedded"], indirect=True)
def test_a_function_is_preheated_when_it_changed(bench: Bench) -> None:
    file = bench.write(PLAIN.replace("init_script", "preheat: true\n      init_script"), "warm")
    prepared = prepare(file, cloud := bench.cloud(), Budget())
    (notice,) = warm_up(prepared, cloud)
    assert notice.startswith("warm was not preheated: lambda:Invoke warm: ResourceNotFound")
    execute(prepared, cloud, lambda *_: None)
    assert warm_up(prepared, cloud) == ()
    assert (again := prepare(file, cloud, Budget())).plan.empty
    bench.run("rm", file)
    assert warm_up(again, cloud) == (), "unchanged: not called"
    cloud.close()
