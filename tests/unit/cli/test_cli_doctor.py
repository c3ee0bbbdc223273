"""What `orchgpu doctor` makes of what it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.doctor import checked, told_skew
from orchgpu.cli.main import _status_of


def test_a_check_that_fails_is_a_finding() -> None:
    def fails() -> str:
        raise AppError(ErrorCode.UNAVAILABLE, "nobody there")

    assert checked("x", lambda: "fine").good
    finding = checked("x", fails)
    assert (finding.good, finding.said) == (False, "nobody there")


@pytest.mark.parametrize(("ahead_s", "way"), [(60.0, "behind"), (-60.0, "ahead of")])
def test_a_clock_that_is_off_says_which_way(ahead_s: float, way: str) -> None:
    with pytest.raises(AppError, match=f"60 s {way} the cloud"):
        told_skew(ahead_s)
    assert "within" in told_skew(1.0)
    assert "not known" in told_skew(None)


def test_every_check_is_made_though_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")  # which never goes to AWS
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "127.0.0.1:9")
    monkeypatch.setattr("orchgpu.cli.scheduler.ANSWER_WITHIN_S", 0.1)
    assert _status_of(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [f["check"] for f in said["findings"]] == ["cloud", "clock", "scheduler"]
    assert not any(f["good"] for f in said["findings"])


def test_a_canary_needs_one_function() -> None:
    assert _status_of(["doctor", "--canary", "x"]) == 2
