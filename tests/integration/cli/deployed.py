"""A deployed function `f` without an orchestrator, and the objects of its jobs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from contract.keys import OUTPUT_JOB
from corekit.decode import encode
from orchgpu.core.function import Function, Output
from tests.history_records import job_result

STATE = "orchgpu-state-000000000000-us-east-1"


def deploy(
    client: Any,
    revision: str,
    *,
    name: str = "f",
    suffixes: tuple[str, ...] = (),
    outputs: tuple[Output, ...] = (Output(bucket="outputs"),),
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


def finished(
    client: Any, job: str, name: str, *, state: str = "SUCCEEDED", body: bytes = b""
) -> None:
    metadata = {OUTPUT_JOB: job}
    client.put_object(Bucket="outputs", Key=name, Body=body, Metadata=metadata)
    sha256 = hashlib.sha256(body).hexdigest()
    result = job_result(
        job_id=job,
        state=state,
        attempt=1,
        files=[{"bucket": "outputs", "key": name, "size": len(body), "sha256": sha256}],
        times={"EStart": 1.0, "EEnd": 2.0, "committed": 2.1},
    )
    client.put_object(Bucket="middle", Key=f"results/{job}.json", Body=result.to_json())
