"""Rights of browsers, their sessions, and what of outputs and addresses is safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.result import Result
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import Request
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.core.function import Function, Output
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.summary import summary_of
from orchgpu.web.app import check_listen
from orchgpu.web.console import ConsoleSettings
from orchgpu.web.http import sessions as module
from orchgpu.web.http.sessions import Session, Sessions
from orchgpu.web.http.uploads import Upload
from orchgpu.web.routes.functions import Step, graph_around
from orchgpu.web.stories import output_at, outputs_of
from tests.unit.web.console_things import record

JOB = summary_of(record("j1", key="alice", owner="bob/s", tenant="lab"))


@pytest.mark.parametrize(
    ("name", "role", "tenant", "sees", "changes"),
    [
        ("op", KeyRole.OPERATOR, None, True, True),
        ("alice", KeyRole.REQUESTER, None, True, True),
        ("bob", KeyRole.REQUESTER, None, True, True),
        ("other", KeyRole.REQUESTER, None, False, False),
        ("other", KeyRole.REQUESTER, "lab", True, True),
        ("other", KeyRole.REQUESTER, "else", False, False),
        ("reads", KeyRole.READER, "lab", True, False),
        ("reads", KeyRole.READER, None, False, False),
    ],
)
def test_a_job_is_seen_by_its_keys_its_tenant_and_operators(
    name: str, role: KeyRole, tenant: str | None, sees: bool, changes: bool
) -> None:
    viewer = KeyRights(name=name, role=role, tenant=tenant)
    assert (viewer.sees(JOB), viewer.may_change(JOB)) == (sees, changes)
    assert (viewer.shown(JOB).key is not None) is sees


def function(name: str, *, tenant: str = "default", outputs: tuple[str, ...] = ()) -> Function:
    return Function(
        name=name,
        revision="r",
        queue_url="q",
        dead_letter_url="d",
        completion_url="c",
        input_bucket=f"{name}-in",
        intermediate_bucket="m",
        outputs=tuple(Output(bucket=one) for one in outputs),
        request=Request(tenant=tenant),
    )


@pytest.mark.parametrize(
    ("role", "tenant", "sees"),
    [
        (KeyRole.OPERATOR, None, True),
        (KeyRole.REQUESTER, None, True),
        (KeyRole.REQUESTER, "lab", True),
        (KeyRole.REQUESTER, "else", False),
        (KeyRole.READER, "lab", True),
        (KeyRole.READER, None, False),
    ],
)
def test_a_function_is_seen_by_its_tenant(role: KeyRole, tenant: str | None, sees: bool) -> None:
    viewer = KeyRights(name="k", role=role, tenant=tenant)
    assert viewer.sees_function(function("f", tenant="lab")) is sees


def test_a_workflow_is_all_functions_that_are_connected() -> None:
    first = Step(name="a", device="", inputs=(("a-in", ""),), outputs=(("b-in", "x"),))
    second = Step(name="b", device="", inputs=(("b-in", ""),), outputs=(("out", ""),))
    other = Step(name="other", device="", inputs=(("other", ""),), outputs=())
    graph = graph_around("a", [first, second, other])
    assert [node.label for node in graph.nodes] == ["a", "a-in", "b-in", "b", "out"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        ("place/a-in", "function/a"),
        ("function/a", "place/b-in"),
        ("place/b-in", "function/b"),
        ("function/b", "place/out"),
    ]
    assert graph_around("b", [first, second]) == graph


class HandClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


VIEWER = KeyRights(name="k", role=KeyRole.READER)


def opened() -> tuple[HandClock, Sessions, str, Session]:
    clock = HandClock()
    sessions = Sessions(clock)
    return clock, sessions, *sessions.open(VIEWER, "key")


def test_a_session_is_found_by_its_token_alone() -> None:
    _, sessions, token, session = opened()
    assert sessions.find(token) is session
    assert sessions.find(session.id) is None, "its hash, which memory holds, opens nothing"
    assert sessions.find(None) is None
    assert "key" not in repr(session)
    sessions.close(session)
    assert sessions.find(token) is None
    assert not sessions.is_open(session)


def test_a_session_ends_when_it_is_idle_or_old() -> None:
    clock, sessions, token, _ = opened()
    clock.now_s += module.IDLE_S - 1
    assert sessions.find(token) is not None
    clock.now_s += module.IDLE_S
    assert sessions.find(token) is None
    clock, sessions, token, session = opened()
    session.streams = 1
    clock.now_s += module.LENGTH_S - 1
    assert sessions.find(token) is not None, "an open stream is use"
    clock.now_s += 1
    assert sessions.find(token) is None
    assert len(sessions) == 0


def test_a_key_is_checked_again_now_and_then() -> None:
    clock, sessions, _, session = opened()
    assert not sessions.is_due(session)
    clock.now_s += module.CHECK_S
    assert sessions.is_due(session)
    assert not sessions.is_due(session), "once"


def test_the_session_that_was_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_OF_KEY_MAX", 2)
    clock, sessions, first, _ = opened()
    clock.now_s += 1
    second, _ = sessions.open(VIEWER, "key")
    assert sessions.find(first) is not None
    clock.now_s += 1
    sessions.find(first)
    sessions.open(VIEWER, "key")
    assert sessions.find(second) is None
    assert sessions.find(first) is not None


@pytest.mark.parametrize("token", [None, "", "x", "\ud800"])
def test_a_wrong_csrf_token_is_refused(token: str | None) -> None:
    _, _, _, session = opened()
    with pytest.raises(AppError) as caught:
        session.check_csrf(token)
    assert caught.value.details["needs"] == "csrf"
    session.check_csrf(session.csrf)


@pytest.mark.parametrize(
    ("listen", "has_keys", "behind_tls", "problem"),
    [
        ("127.0.0.1:0", False, False, ""),
        ("localhost:1", True, False, ""),
        ("0.0.0.0:1", False, True, "every visitor would be an operator"),
        ("10.0.0.7:1", True, False, "unprotected"),
        ("10.0.0.7:1", True, True, ""),
    ],
)
def test_an_address_without_protection_is_refused(
    listen: str, has_keys: bool, behind_tls: bool, problem: str
) -> None:
    settings = ConsoleSettings(scheduler="s:1", listen=listen, behind_tls=behind_tls)
    if not problem:
        check_listen(settings, has_keys=has_keys)
        return
    with pytest.raises(AppError, match=problem):
        check_listen(settings, has_keys=has_keys)


def result(*keys: str, size: int = 10) -> Result:
    return Result(
        job_id="j",
        state="SUCCEEDED",
        reason="NONE",
        attempt=1,
        nonce="n",
        exit_code=0,
        files=[{"bucket": "o", "key": key, "size": size, "sha256": ""} for key in keys],
        times={},
        log_tail="",
    )


def test_only_harmless_kinds_of_files_are_previewed() -> None:
    found = outputs_of(result("a/x.PNG", "x.svg", "x.html", "x.bin", "x"))
    assert [(one.name, one.type.partition(";")[0], one.preview) for one in found] == [
        ("x.PNG", "image/png", "image"),
        ("x.svg", "text/plain", "text"),
        ("x.html", "text/plain", "text"),
        ("x.bin", "application/octet-stream", None),
        ("x", "application/octet-stream", None),
    ]
    assert outputs_of(result("x.txt", size=2**30))[0].preview is None
    assert outputs_of(None) == ()


@pytest.mark.parametrize("number", ["1", "-1", "x", "", "9" * 40, "٠"])
def test_an_output_that_is_not_there_is_not_found(number: str) -> None:
    with pytest.raises(AppError) as caught:
        output_at(outputs_of(result("x")), number)
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "a\x00", "x" * 256])
def test_a_name_that_is_a_path_is_not_uploaded(name: str) -> None:
    with pytest.raises(AppError, match="not the name of a file"):
        Upload(name)


def test_an_upload_is_removed() -> None:
    upload = Upload("<b>ü</b>.txt".replace("/", ""))
    upload.file.write_bytes(b"x")
    folder: Path = upload.file.parent
    upload.remove()
    assert not folder.exists()
