"""Rules of buckets on their way out, against a cloud over HTTP."""

import contextlib

import pytest

from orchgpu.deploy.deployment import execute, prepare_removal
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
        cloud._client("s3").meta.events.register(
            "provide-client-params.s3.PutBucketNotificationConfiguration",
            lambda params, **_: puts.append(params["Bucket"]),
        )
        puts: list[str] = []
        execute(prepared, cloud, lambda *_: None)
    assert sorted(puts) == ["once-in", "once-intermediate"]
