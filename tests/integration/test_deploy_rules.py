"""Rules of buckets on their way out, and the record of a function, against a cloud over HTTP."""

import contextlib
import json
from pathlib import Path

import pytest

from corekit.decode import decode
from orchgpu.adapters.registry import CHANGED_KEY
from orchgpu.core.function import Function
from orchgpu.deploy.deployment import execute, prepare_removal
from tests.integration.conftest import Programs
from tests.integration.test_deploy_clouds import FDL, Bench, bench, endpoint

__all__ = ["bench", "endpoint"]


def test_rm_of_a_function_that_was_deleted_by_hand(bench: Bench) -> None:
    """S3 checks the destinations of all rules of a bucket whenever one is written or taken out."""
    file, s3 = bench.write(FDL, "ghost"), bench.clients["s3"]
    bench.run("deploy", file)
    bench.clients["lambda"].delete_function(FunctionName="ghost")
    assert "ghost: removed" in bench.run("rm", file).output
    left = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert [name for name in left if name.startswith("ghost-")] == []
    assert "ghost: not deployed" in bench.run("rm", file).output


def test_a_definition_on_standard_input(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read once; what it names lies below the current folder."""
    monkeypatch.chdir(bench.folder)
    text = FDL.format(name="piped")
    assert "piped" in bench.run("plan", "-", status=2, text=text).stdout
    assert "piped: deployed" in bench.run("deploy", "-", text=text).stdout
    assert "plan: nothing to do" in bench.run("plan", "-", text=text).stdout
    wrong = bench.run("deploy", "-", text=text.replace("run.sh", "gone.sh"), status=2)
    assert "<stdin>:6:" in wrong.stderr


def test_the_rules_of_a_bucket_go_out_in_one_write(bench: Bench) -> None:
    """The rest of a bucket's rules is never checked against what goes with them."""
    bench.run("deploy", bench.write(FDL, "once"))
    with contextlib.closing(bench.cloud()) as cloud:
        prepared = prepare_removal(["once"], cloud)
        cloud.client("s3").meta.events.register(
            "provide-client-params.s3.PutBucketNotificationConfiguration",
            lambda params, **_: puts.append(params["Bucket"]),
        )
        puts: list[str] = []
        execute(prepared, cloud, lambda *_: None)
    assert sorted(puts) == ["once-in", "once-intermediate"]


def test_a_deploy_refuses_what_no_known_device_can_hold(
    bench: Bench, programs: Programs, tmp_path: Path
) -> None:
    """Nothing is created; with the flag everything is, for devices that come later."""
    devices = programs.inventory("devices.yaml", "kind: cpu, model: small, memory_mib: 512")
    ssgmd = ("gpu_scheduler.daemon", "--state", str(tmp_path / "s"), "--listen", "127.0.0.1:0")
    address = programs.start(*ssgmd, "--capacity", str(devices)).wait_ready()["socket"]
    file, scheduler = bench.write(FDL, "bulky"), ("--scheduler", address)
    refused = bench.run("deploy", file, *scheduler, status=7)
    assert f"{file}:8:5: error: functions.aws[0].gpu: no known device could do" in refused.stderr
    assert "orchgpu: nothing was deployed, because of functions.aws[0].gpu. " in refused.stderr
    assert refused.stderr.count("the largest such device has 512 MiB, the largest fit is") == 1
    assert "--allow-infeasible" in refused.stderr
    error = json.loads(bench.run("deploy", file, *scheduler, "--json", status=7).stdout)["error"]
    assert error["code"] == "impossible"
    assert error["message"].count("the largest such device has 512 MiB, the largest fit is") == 1
    planned = bench.run("plan", file, *scheduler, "--json", status=2)
    assert [note["severity"] for note in json.loads(planned.stdout)["notes"]] == ["error"]
    buckets = [bucket["Name"] for bucket in bench.clients["s3"].list_buckets()["Buckets"]]
    assert [name for name in buckets if name.startswith("bulky-")] == []
    done = bench.run("deploy", file, *scheduler, "--allow-infeasible")
    assert "bulky: deployed" in done.stdout
    assert "8:5: error: functions.aws[0].gpu: no known device could do this: " in done.stderr
    bench.run("rm", file)


def test_a_deploy_needs_no_scheduler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs wait in their queue; the warning shows that nobody checked the request."""
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "127.0.0.1:9")
    monkeypatch.setattr("orchgpu.jobs.scheduler.ANSWER_WITHIN_S", 0.2)
    done = bench.run("deploy", bench.write(FDL, "early"))
    assert "warning: functions.aws[0].gpu: not checked whether a device can hold" in done.stderr
    assert "early: deployed" in done.stdout
    bench.run("deploy", bench.write(FDL, "typo"), "--scheduler", "127.0.0.1:9", status=8)


def test_a_record_notes_the_first_deploy_with_its_input(bench: Bench) -> None:
    def deployed_at_s(text: str) -> float:
        bench.run("deploy", bench.write(text, "dated"))
        state, s3 = bench.cloud().place.state_bucket, bench.clients["s3"]
        body = s3.get_object(Bucket=state, Key="functions/dated.json")["Body"].read()
        return decode(Function, json.loads(body)).deployed_at_s

    def note_as(noted_s: float) -> None:
        """As if it had been deployed at that time."""
        state, s3 = bench.cloud().place.state_bucket, bench.clients["s3"]
        body = json.loads(s3.get_object(Bucket=state, Key="functions/dated.json")["Body"].read())
        changed = json.dumps({**body, "deployed_at_s": noted_s}).encode()
        s3.put_object(Bucket=state, Key="functions/dated.json", Body=changed)

    first_s = deployed_at_s(FDL)
    bench.run("plan", bench.write(FDL, "dated"), status=0)  # the plan leaves it out
    note_as(1000.0)
    assert deployed_at_s(FDL.replace("memory: 256", "memory: 512")) == 1000.0
    assert deployed_at_s(FDL.replace("queries", "others")) >= first_s > 1000.0
    bench.run("rm", "dated", "--force")


def test_orchestrators_notice_a_deploy_and_a_removal_by_one_object(bench: Bench) -> None:
    """Its etag changes after the record did; a deploy without changes leaves it."""
    file, s3 = bench.write(FDL, "seen"), bench.clients["s3"]
    with contextlib.closing(bench.cloud()) as cloud:
        state = cloud.place.state_bucket

    def etag() -> str:
        return str(s3.head_object(Bucket=state, Key=CHANGED_KEY)["ETag"])

    bench.run("deploy", file)
    first = etag()
    bench.run("deploy", file)
    assert etag() == first
    bench.run("rm", file)
    assert etag() != first


SETTINGS = """\
      reserved_concurrency: 3
      tags: {team: physics}
    gpu:"""


def test_settings_are_deployed_and_set_back(bench: Bench) -> None:
    settings = SETTINGS.replace("{", "{{").replace("}", "}}")
    file, functions = bench.write(FDL.replace("    gpu:", settings), "settings"), "settings"
    text = file.read_text()
    bench.run("deploy", file)
    assert "plan: nothing to do" in bench.run("plan", file).output
    answer = bench.clients["lambda"].get_function(FunctionName=functions)
    assert answer["Concurrency"] == {"ReservedConcurrentExecutions": 3}
    assert answer["Tags"]["team"] == "physics"
    file.write_text(text.replace(SETTINGS, "    gpu:"))
    shown = bench.run("plan", file, status=2).output
    for change in ("reserved 3 → None", "tags (orchgpu:tags, team)"):
        assert change in shown
    bench.run("deploy", file)
    assert "plan: nothing to do" in bench.run("plan", file).output
    answer = bench.clients["lambda"].get_function(FunctionName=functions)
    assert "Concurrency" not in answer
    assert "team" not in answer["Tags"]
    tags = bench.clients["s3"].get_bucket_tagging(Bucket="settings-in")["TagSet"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {
        "createdby": "orchgpu",
        "orchgpu:function": "settings",
    }
