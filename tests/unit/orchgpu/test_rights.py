"""Rights of a key on a job, as commands and the console check them before they change anything."""

from __future__ import annotations

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import HIDDEN_BLOCK, Record, Request
from gpu_scheduler.protocol.answers import SessionWelcome
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.core.function import Function
from orchgpu.jobs.rights import JobRights, KeyRights, rights_of
from tests.unit.web.console_things import record

READ = replace(record("j1", key="ann", owner="orch/s", tenant="lab"), handle="h")
NO_HANDLE = replace(READ, handle="")
HIDDEN = replace(NO_HANDLE, block=HIDDEN_BLOCK)
FUNCTION = Function(
    name="f",
    revision="r",
    queue_url="q",
    dead_letter_url="d",
    completion_url="c",
    input_bucket="in",
    intermediate_bucket="m",
    outputs=(),
    request=Request(tenant="lab"),
)


def key(role: KeyRole, name: str = "k", tenant: str | None = None) -> KeyRights:
    return KeyRights(name=name, role=role, tenant=tenant)


@pytest.mark.parametrize(
    ("who", "shown", "cancels", "retries"),
    [
        (key(KeyRole.OPERATOR), HIDDEN, True, True),
        (key(KeyRole.REQUESTER, tenant="lab"), READ, True, True),
        (key(KeyRole.REQUESTER, tenant="lab"), NO_HANDLE, False, True),
        (key(KeyRole.REQUESTER, "orch"), NO_HANDLE, True, True),
        (key(KeyRole.REQUESTER, "ann"), NO_HANDLE, False, True),
        (key(KeyRole.REQUESTER), HIDDEN, False, False),
        (key(KeyRole.READER, tenant="lab"), NO_HANDLE, False, False),
        (key(KeyRole.READER, "orch"), READ, False, False),
        (key(KeyRole.REQUESTER), None, True, True),
        (key(KeyRole.REQUESTER, tenant="lab"), None, True, True),
        (key(KeyRole.REQUESTER, tenant="else"), None, False, False),
    ],
)
def test_a_job_is_changed_by_keys_that_may_act_for_it(
    who: KeyRights, shown: Record | None, cancels: bool, retries: bool
) -> None:
    rights = JobRights(key=who, job="j1", record=shown, function=FUNCTION)
    for check, may in ((rights.require_cancel, cancels), (rights.require_retry, retries)):
        if may:
            check()
            continue
        with pytest.raises(AppError) as refused:
            check()
        assert refused.value.code is ErrorCode.DENIED
        assert "j1" in refused.value.message or "f belongs" in refused.value.message


@pytest.mark.parametrize(
    ("welcome", "expected"),
    [
        (None, None),
        (SessionWelcome(epoch=1, now_s=0.0), None),
        (SessionWelcome(epoch=1, now_s=0.0, role="operator"), key(KeyRole.OPERATOR, "ann")),
        (SessionWelcome(epoch=1, now_s=0.0, role="host"), key(KeyRole.READER, "ann")),
        (SessionWelcome(epoch=1, now_s=0.0, role="newer"), key(KeyRole.READER, "ann")),
        (
            SessionWelcome(epoch=1, now_s=0.0, role="requester", tenant="lab"),
            key(KeyRole.REQUESTER, "ann", "lab"),
        ),
    ],
)
def test_a_key_has_the_rights_that_its_welcome_states(
    welcome: SessionWelcome | None, expected: KeyRights | None
) -> None:
    assert rights_of("ann/session-1", welcome) == expected


@pytest.mark.parametrize(
    ("who", "message"),
    [
        (key(KeyRole.READER), "function f needs a key of role requester"),
        (key(KeyRole.READER, tenant="else"), "function f belongs to another tenant"),
        (key(KeyRole.REQUESTER, tenant="else"), "function f belongs to another tenant"),
    ],
)
def test_the_refusal_of_a_function_names_what_is_missing(who: KeyRights, message: str) -> None:
    assert not who.sees_function(FUNCTION)
    with pytest.raises(AppError, match=message):
        who.require_function(FUNCTION)


@pytest.mark.parametrize(
    "who",
    [
        key(KeyRole.READER, tenant="lab"),
        key(KeyRole.REQUESTER),
        key(KeyRole.REQUESTER, tenant="lab"),
        key(KeyRole.OPERATOR),
        key(KeyRole.OPERATOR, tenant="else"),
    ],
)
def test_a_function_that_is_seen_is_not_refused(who: KeyRights) -> None:
    assert who.sees_function(FUNCTION)
    who.require_function(FUNCTION)
