"""The runner's private folder: where botocore finds the credentials, and no link leads."""

from __future__ import annotations

import configparser
import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from remote_gpu.host.runs.private import PrivateFolder
from remote_gpu.isolation.apply import Sandbox
from tests.unit.remote_gpu.wire.test_runs import ORDER

AWS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "AWS_SESSION_TOKEN": "token",
    "AWS_REGION": "eu-west-1",
}


@contextlib.contextmanager
def private_in(folder: Path) -> Iterator[PrivateFolder]:
    private = PrivateFolder(Sandbox(folder=str(folder)))
    try:
        yield private
    finally:
        private.close()
        private.close()


def asked(variables: dict[str, str]) -> dict[str, object]:
    """What botocore would get."""
    config = configparser.ConfigParser()
    config.read(variables["AWS_CONFIG_FILE"])
    command = config["default"]["credential_process"].split()
    found: dict[str, object] = json.loads(subprocess.check_output(command))
    return found


def test_the_credentials_are_in_a_file_and_in_no_variable(tmp_path: Path) -> None:
    order = replace(ORDER, aws=AWS, credentials_end_s=0.0)
    with private_in(tmp_path) as private:
        private.write(order)
        variables = private.variables(order)
        assert not {"AKIA", "s3cret", "token"}.intersection(variables.values())
        assert variables["AWS_REGION"] == "eu-west-1"
        expected = {"AccessKeyId": "AKIA", "SecretAccessKey": "s3cret", "SessionToken": "token"}
        assert asked(variables) == {"Version": 1, **expected}
        private.write(replace(order, credentials_end_s=1_800_000_000.0))
        assert asked(variables)["Expiration"] == "2027-01-15T08:00:00Z"
    for file in (tmp_path / "private").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_forgotten_credentials_are_gone_until_the_next_order(tmp_path: Path) -> None:
    order = replace(ORDER, aws=AWS, credentials_end_s=0.0)
    with private_in(tmp_path) as private:
        private.write(order)
        private.forget()
        private.forget()
        assert [file.name for file in (tmp_path / "private").iterdir()] == ["config"]
        private.write(replace(order, aws={**AWS, "AWS_ACCESS_KEY_ID": "AKIANEXT"}))
        assert asked(private.variables(order))["AccessKeyId"] == "AKIANEXT"


def test_a_link_of_the_runner_is_replaced_and_not_followed(tmp_path: Path) -> None:
    order = replace(ORDER, aws=AWS)
    (tmp_path / "elsewhere").write_text("stays")
    with private_in(tmp_path) as private:
        private.write(order)
        file = tmp_path / "private/credentials.json"
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "private").rename(tmp_path / "moved")
        (tmp_path / "private").symlink_to(tmp_path)
        private.write(order)
    assert (tmp_path / "elsewhere").read_text() == "stays"
    assert not (tmp_path / "credentials.json").exists()


def test_an_order_without_credentials_has_none(tmp_path: Path) -> None:
    with private_in(tmp_path) as private:
        private.write(ORDER)
        text = Path(private.variables(ORDER)["AWS_CONFIG_FILE"]).read_text()
    assert text == "[default]\n"
