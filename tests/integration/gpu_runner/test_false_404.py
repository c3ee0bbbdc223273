"""The runner's read of an input in a bucket whose versioning is new: S3 answers 404 at first."""

from __future__ import annotations

from pathlib import Path

import pytest

from lambda_functions.gpu_runner.errors import StorageError
from lambda_functions.gpu_runner.storage.s3 import download
from local_cloud.model.weather import Weather
from tests.embedded_cloud import client_of, cloud_in


def test_an_input_is_read_although_s3_answers_404_at_first(tmp_path: Path) -> None:
    fresh = Weather(versioning_s=0.8, versioning_rate=1.0)
    with cloud_in(tmp_path, weather=fresh) as address, client_of(address, "s3") as s3:
        s3.create_bucket(Bucket="fresh")
        s3.put_bucket_versioning(Bucket="fresh", VersioningConfiguration={"Status": "Enabled"})
        version = s3.put_object(Bucket="fresh", Key="k", Body=b"large")["VersionId"]
        assert download(s3, tmp_path / "k", bucket="fresh", key="k", version=version) == 5


def test_an_input_that_is_gone_is_an_error_in_the_end(tmp_path: Path) -> None:
    pauses: list[float] = []
    with cloud_in(tmp_path) as address, client_of(address, "s3") as s3:
        s3.create_bucket(Bucket="b-1")
        with pytest.raises(StorageError) as error:
            download(s3, tmp_path / "k", bucket="b-1", key="k", pause=pauses.append)
    assert error.value.status == 404
    assert 1 < sum(pauses) < 5
