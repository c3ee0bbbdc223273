"""Deploys of functions that hosts run: no Lambda function, and nothing left."""

from __future__ import annotations

from tests.integration.test_deploy_clouds import FDL, Bench, bench, endpoint

__all__ = ["bench", "endpoint"]


def test_a_function_moves_between_lambda_and_hosts(bench: Bench) -> None:
    lambda_ = bench.clients["lambda"]

    def names() -> list[str]:
        found = lambda_.list_functions()["Functions"]
        return [one["FunctionName"] for one in found if one["FunctionName"] == "moves"]

    for place, there in (("host", []), ("auto", ["moves"]), ("host", []), ("lambda", ["moves"])):
        file = bench.write(f"{FDL}    execution: {place}\n", "moves")
        assert "moves: deployed" in bench.run("deploy", file).output
        assert "plan: nothing to do" in bench.run("plan", file).output
        assert names() == there
    bench.run("deploy", bench.write(f"{FDL}    execution: host\n", "moves"))
    state = bench.cloud().place.state_bucket
    assert "moves: removed" in bench.run("rm", "moves").output
    assert names() == []
    listed = bench.clients["s3"].list_objects_v2(Bucket=state).get("Contents", ())
    assert [one["Key"] for one in listed if "moves" in one["Key"]] == []
