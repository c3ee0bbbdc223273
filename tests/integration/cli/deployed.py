"""A deployed function `f` without an orchestrator, and the objects of its jobs."""

from __future__ import annotations

import json
from typing import Any

from contract.result import Result
from corekit.decode import encode
from orchgpu.core.function import Function, Output

STATE = "orchgpu-state-000000000000-us-east-1"


def deploy(
    client: Any,
    revision: str,
    *,
    name: str = "f",
    suffixes: tuple[str, ...] = (),
    outputs: tuple[Output, ...] = (),
) -> None:
    function = Function(
        name=name,
        revision=revision,
        queue_url="q",
        dead_letter_url="d",
        completion_url="c",
        input_bucket="inputs",
        intermediate_bucket="middle",
        input_suffixes=suffixes,
        outputs=outputs,
    )
    body = json.dumps(encode(function)).encode()
    client.put_object(Bucket=STATE, Key=f"functions/{name}.json", Body=body)


def finished(client: Any, job: str, name: str, *, state: str = "SUCCEEDED") -> None:
    client.put_object(Bucket="outputs", Key=name, Body=b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    result = Result(
        job_id=job,
        state=state,
        reason="NONE",
        attempt=1,
        nonce="n",
        exit_code=0,
        files=[{"bucket": "outputs", "key": name, "size": 0, "sha256": empty}],
        times={"EStart": 1.0, "EEnd": 2.0, "committed": 2.1},
        log_tail="",
    )
    client.put_object(Bucket="middle", Key=f"results/{job}.json", Body=result.to_json())
