"""Reads of objects that are known to exist, in a bucket whose versioning is new: false 404s."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from corekit.values import replace
from gpu_scheduler.model import DeviceKind, Request
from local_cloud.model.weather import Weather
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.uploaded import origin_of
from tests import history_records
from tests.embedded_cloud import client_of, cloud_in

FUNCTION = replace(
    history_records.FUNCTION,
    input_bucket="fresh",
    request=Request(kinds=(DeviceKind.CPU,), memory_mib=1),
)
#: Every read fails in the first second and a half.
FRESH = Weather(versioning_s=1.5, versioning_rate=1.0)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[JobCloud]:
    """A cloud with the bucket `fresh` and its object `k`."""
    with ExitStack() as stack:
        address = stack.enter_context(cloud_in(tmp_path, weather=FRESH))
        s3 = stack.enter_context(client_of(address, "s3"))
        jobs = stack.enter_context(closing(JobCloud(f"http://{address.netloc}")))
        jobs.identity()  # the client is made before the time begins
        s3.create_bucket(Bucket="fresh")
        s3.put_bucket_versioning(Bucket="fresh", VersioningConfiguration={"Status": "Enabled"})
        s3.put_object(Bucket="fresh", Key="k", Body=b"written")
        yield jobs


def test_an_output_is_fetched_although_s3_answers_404_at_first(
    cloud: JobCloud, tmp_path: Path
) -> None:
    to = tmp_path / "out" / "k"
    cloud.download("fresh", "k", to)
    assert to.read_bytes() == b"written"


def test_an_upload_is_a_job_although_s3_answers_404_at_first(
    cloud: JobCloud, tmp_path: Path
) -> None:
    (tmp_path / "input").write_bytes(b"x")
    submitted = cloud.submit(FUNCTION, tmp_path / "input", now_s=time.time())
    assert submitted.key == "input"
    assert submitted.job_ids


def test_an_input_that_was_uploaded_before_is_found_although_s3_answers_404_at_first(
    cloud: JobCloud, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"x")
    assert cloud.submitted_before(FUNCTION, file) is None
    services = cloud.services
    services.upload(file, "fresh", "input", origin_of(FUNCTION, file, ""))
    services.upload(file, "fresh", "input and more")
    found = cloud.submitted_before(FUNCTION, file)
    assert found is not None
    assert found.key == "input"
