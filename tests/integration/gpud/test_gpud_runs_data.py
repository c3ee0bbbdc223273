"""Declared data sets of functions that run on a real gpud: a folder of links, of one tenant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from contract.result import Result
from contract.states import JobState
from gpu_scheduler.data_manifest import digest_of, manifest_of, s3_files
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.warm import tenant_folder

from .conftest import Gpud, running_gpud
from .run_bench import Bench, send_order
from .test_gpud_runs import bench, finished  # noqa: F401 - a fixture

READ = """#!/bin/sh
cd "$DATA_DIR" && ls && cat weights/part-0 weights/deep/part-1 table && touch weights/new
readlink table
"""


@pytest.fixture(scope="module")
def gpud(
    tmp_path_factory: pytest.TempPathFactory,
    bench: Bench,  # noqa: F811
) -> Iterator[Gpud]:
    variables = {
        "AWS_ENDPOINT_URL_S3": bench.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with running_gpud(
        tmp_path_factory.mktemp("gpud"), "--data-space=0.001", variables=variables
    ) as made:
        yield made


def put(bench: Bench, name: str, files: dict[str, bytes]) -> DataSet:  # noqa: F811
    """Store files, and declare them as a set."""
    for path, data in files.items():
        bench.s3.put_object(Bucket="state", Key=f"{name}/{path}", Body=data)
    pages = bench.s3.get_paginator("list_objects_v2").paginate(Bucket="state", Prefix=f"{name}/")
    source = f"s3://state/{name}/"
    manifest = manifest_of(source, dict(s3_files(pages, f"{name}/")).values())
    return DataSet(name=name, source=source, digest=digest_of(manifest), bytes=manifest.bytes or 0)


def ran(gpud: Gpud, bench: Bench, script: str, **fields: Any) -> Result:  # noqa: F811
    install = gpud.install(**fields)
    job, event = bench.stage(gpud, install)
    assert send_order(gpud, install, bench.order(job, event, bench.package(script)))
    return finished(gpud, bench, install, job)


def test_the_users_code_reads_the_sets_of_its_tenant_alone(
    gpud: Gpud,
    bench: Bench,  # noqa: F811
) -> None:
    weights = put(bench, "weights", {"part-0": b"zero\n", "deep/part-1": b"one\n"})
    table = put(bench, "table", {"only.txt": b"rows\n"})
    result = ran(gpud, bench, READ, data_sets=(weights, table))
    *lines, last = result.log_tail.splitlines()
    assert lines[:5] == ["table", "weights", "zero", "one", "rows"]
    assert "touch: cannot touch 'weights/new'" in lines[5]
    view = gpud.state / "data-views" / tenant_folder("t")
    assert last.startswith(f"{view}/")
    assert os.path.exists(last)
    for script in (f"cat {last}", f"ls {view}"):
        text = f'#!/bin/sh\necho "${{DATA_DIR-none}}"; {script} || true\n'
        other = ran(gpud, bench, text, tenant="other")
        assert other.state == JobState.SUCCEEDED
        assert other.log_tail.startswith("none\n")
        assert "rows" not in other.log_tail
        assert "enied" in other.log_tail or "No such file" in other.log_tail
