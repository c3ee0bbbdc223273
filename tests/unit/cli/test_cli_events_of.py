"""The event stream of a command's scheduler: of the same system as its socket endpoint, or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.local_system import HOME_VARIABLE
from orchgpu.jobs.scheduler import HTTP_VARIABLE, events_of
from orchgpu.local.system import SCHEDULER_VARIABLE
from tests.local_systems import home_of


@pytest.fixture(autouse=True)
def _a_local_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (HOME_VARIABLE, SCHEDULER_VARIABLE, HTTP_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    home = home_of(tmp_path / ".orchgpu")
    with home.lock():  # as its supervisor
        yield


@pytest.mark.parametrize(
    ("scheduler", "http", "environment", "found"),
    [
        (None, None, {}, "127.0.0.1:4780"),
        ("127.0.0.1:4700", None, {}, "127.0.0.1:4780"),
        ("10.0.0.1:4700", None, {}, None),
        (None, None, {SCHEDULER_VARIABLE: "10.0.0.1:4700"}, None),
        ("10.0.0.1:4700", "10.0.0.1:4780", {}, "10.0.0.1:4780"),
        (None, None, {HTTP_VARIABLE: "10.0.0.2:4780"}, "10.0.0.2:4780"),
        ("10.0.0.1:4700", None, {HTTP_VARIABLE: "10.0.0.2:4780"}, None),
        (None, "10.0.0.3:1,10.0.0.4:1", {HTTP_VARIABLE: "10.0.0.2:1"}, "10.0.0.3:1,10.0.0.4:1"),
    ],
)
def test_the_endpoints(
    scheduler: str | None,
    http: str | None,
    environment: dict[str, str],
    found: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert events_of(scheduler, http) == found


def test_a_wrong_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AppError, match=r"^--scheduler-http: 'nonsense'") as refused:
        events_of(None, "nonsense")
    assert refused.value.code is ErrorCode.INVALID
    monkeypatch.setenv(HTTP_VARIABLE, "nonsense")
    with pytest.raises(AppError, match=rf"^{HTTP_VARIABLE}: 'nonsense'"):
        events_of(None, None)
