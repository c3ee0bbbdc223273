"""Addresses of logs, and engines found by presence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.log.registry import installed_engines, open_log, parse_log_address


def test_an_address_has_a_scheme_a_place_and_options() -> None:
    found = parse_log_address("postgresql://me@one:5432,two/db%20x?name=log&passfile=/p")
    assert (found.scheme, found.host, found.path, found.user) == (
        "postgres",
        "one:5432,two",
        "db x",
        "me",
    )
    assert found.options == {"name": "log", "passfile": "/p"}
    assert parse_log_address("s3://bucket/a/b").path == "a/b"


@pytest.mark.parametrize(
    "text",
    ["postgres://me:canary@host/db", "postgres://host/db?password=canary", "s3://k:canary@b/p"],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(AppError, match="passfile") as refused:
        parse_log_address(text)
    assert refused.value.code is ErrorCode.INVALID
    assert "canary" not in refused.value.message


@pytest.mark.parametrize("text", ["", "log", "/var/lib/ssgmd", "s3:bucket", "s3://b/p?region"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AppError) as refused:
        parse_log_address(text)
    assert refused.value.code is ErrorCode.INVALID


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("dynamo://t/n", "dynamodb"),
        ("redis://h/n", "known are dynamodb, file, postgres, s3"),
        ("s3://bucket/name?reigon=x", "region"),
        ("s3://bucket", "s3://BUCKET/NAME"),
        ("dynamodb://table?region=eu-west-1", "dynamodb://TABLE/NAME"),
        ("postgres://h/d?colour=red", "colour"),
        ("postgres://one..two/d", "one..two"),
        ("postgres://u@/d?host=.", "host=."),
    ],
)
def test_a_wrong_address_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(AppError, match=hint) as refused:
        open_log(parse_log_address(text), 1.0)
    assert refused.value.code is ErrorCode.INVALID


def test_an_engine_of_another_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[orchgpu.logs]\nacme = acme_log:ENGINE\n")
    (tmp_path / "acme_log.py").write_text("import no_such_library_of_acme\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "acme" in installed_engines()
    with pytest.raises(AppError, match=r"no_such_library_of_acme.*orchgpu\[acme\]") as missing:
        open_log(parse_log_address("acme://x/y"), 1.0)
    assert missing.value.code is ErrorCode.NOT_FOUND


def test_an_engine_is_imported_when_it_is_chosen() -> None:
    code = "import sys, gpu_scheduler.daemon.cli; "
    code += "print('psycopg' in sys.modules, 'boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
