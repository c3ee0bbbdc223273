"""Keys and their rights; a changed keys file applies at once, an invalid one never."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, JobId, LeaseId
from gpu_scheduler.daemon.access.authorizer import NOBODY, Authorizer, JobOwner
from gpu_scheduler.daemon.access.keys import (
    KeyEntry,
    KeyRole,
    add_key,
    read_keys,
    revoke_key,
    verified,
)
from gpu_scheduler.floors import WarmFloor
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, Slo
from gpu_scheduler.protocol import ops


def added(path: Path, name: str, role: KeyRole, **bound: Any) -> str:
    return add_key(path, KeyEntry(name=name, role=role, sha256="0" * 64, **bound))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


class Connection:
    """Remembers that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def owner_of(lease: str) -> str | None:
    return {"l-a": "a/s", "l-b": "b/s", "l-old": "session-1"}.get(lease)


def job_of(holder: str) -> JobOwner | None:
    return {
        "j-a": JobOwner("a/s", "lab"),
        "j-lab": JobOwner("lab1/s", "lab"),
        "j-gone": JobOwner("revoked/s", "lab"),
        "j-orphan": JobOwner(None, "lab"),
        "j-ended": JobOwner(None, None),
        "j-left": JobOwner(None, "lab", "a"),
        "j-away": JobOwner("a/away:q", "lab", "a"),
        "j-left-lab": JobOwner(None, "lab", "lab1"),
        "j-left-gone": JobOwner(None, "lab", "revoked"),
        "j-old": JobOwner("session-1", None),
    }.get(holder)


def run_of(run: str) -> str | None:
    return {"r-lab": "lab", "r-other": "other"}.get(run)


def denied(text: str) -> pytest.RaisesExc[AppError]:
    def is_denial(error: AppError) -> bool:
        return error.code is ErrorCode.DENIED

    return pytest.raises(AppError, match=text, check=is_denial)


def test_only_the_hash_of_a_key_is_kept_and_only_for_its_owner(path: Path) -> None:
    key = added(path, "ops", KeyRole.OPERATOR)
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.partition(".")[2] not in path.read_text()
    assert verified(key, read_keys(path).get) is not None
    for wrong in (
        key[:-1] + ("A" if key[-1] != "A" else "B"),
        "ops." + "a" * 43,
        "x",
        "",
        "\ud800",
    ):
        assert verified(wrong, read_keys(path).get) is None


def test_names_are_taken_once_and_free_again_when_revoked(path: Path) -> None:
    first = added(path, "a", KeyRole.READER)
    with pytest.raises(AppError, match="there is a key 'a'") as caught:
        added(path, "a", KeyRole.OPERATOR)
    assert caught.value.code is ErrorCode.CONFLICT
    revoke_key(path, "a")
    with pytest.raises(AppError, match="has no key 'a'"):
        revoke_key(path, "a")
    added(path, "a", KeyRole.READER)
    assert verified(first, read_keys(path).get) is None


@pytest.mark.parametrize("name", ["", "A", "a.b", "a/b", "-a", "a" * 64, "a b"])
def test_a_malformed_name_of_a_key_is_refused(path: Path, name: str) -> None:
    with pytest.raises(AppError, match="not a valid key name"):
        added(path, name, KeyRole.READER)
    assert not path.exists()


def test_bounds_go_with_their_role(path: Path) -> None:
    with pytest.raises(AppError, match="only a requester"):
        added(path, "a", KeyRole.HOST, tenant="lab")
    with pytest.raises(AppError, match="only a host"):
        added(path, "a", KeyRole.READER, host="gpu-a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot read"),
        ("[]", "expected an object"),
        ("{", "cannot read"),
        ('{"ssgmd_keys": 9, "keys": []}', "version 9"),
        ("[" * 99999, "cannot read"),
        ('{"ssgmd_keys": 1, "keys": [{"name": "a", "role": "king", "sha256": "x"}]}', "role"),
        ('{"ssgmd_keys": 1, "keys": [{"name": "a", "role": "host", "sha256": "x"}]}', "sha256"),
    ],
)
def test_a_broken_file_opens_nothing(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(AppError, match=said):
        Authorizer(path, owner_of, job_of, run_of)


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    added(path, "a", KeyRole.READER)
    path.chmod(0o644)
    with denied("chmod 600"):
        read_keys(path)


def test_two_keys_of_one_name_are_refused(path: Path) -> None:
    added(path, "a", KeyRole.READER)
    value = json.loads(path.read_text())
    value["keys"] *= 2
    path.write_text(json.dumps(value))
    with pytest.raises(AppError, match="two keys of one name"):
        read_keys(path)


def test_without_keys_every_caller_is_trusted(path: Path) -> None:
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    caller = authorizer.caller(None)
    authorizer.authorize(caller, "forget", ops.Forget(host="h"))  # type: ignore[arg-type]
    authorizer.authorize_host(caller, "h")
    assert caller.session("s") == "s"
    assert not authorizer.has_keys


@pytest.mark.parametrize("op", ops.OPS)
def test_a_connection_before_its_hello_has_no_rights(path: Path, op: str) -> None:
    with denied("needs a key"):
        Authorizer(path, owner_of, job_of, run_of).authorize(NOBODY, op, None)


def test_a_connection_before_its_hello_is_not_a_host_and_sees_redacted_answers(path: Path) -> None:
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    with denied("needs a key"):
        authorizer.authorize_host(NOBODY, "h")
    assert not NOBODY.sees_all
    assert not authorizer.acts_for(NOBODY, "a", None)


LOOK, ASK, RULE = "inventory", "reserve", "drain"


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (KeyRole.READER, (LOOK,)),
        (KeyRole.REQUESTER, (LOOK, ASK)),
        (KeyRole.OPERATOR, (LOOK, ASK, RULE)),
        (KeyRole.HOST, ()),
    ],
)
def test_a_role_includes_the_rights_of_lower_ones(
    path: Path, role: KeyRole, allowed: tuple[str, ...]
) -> None:
    gate_key = added(path, "k", role)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    caller = authorizer.caller(gate_key)
    for op in (LOOK, ASK, RULE):
        if op in allowed:
            authorizer.authorize(caller, op, None)
        else:
            with denied(f"key 'k' has role {role.value}"):
                authorizer.authorize(caller, op, None)


def test_every_op_that_changes_something_is_closed_to_readers(path: Path) -> None:
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    key = added(path, "r", KeyRole.READER)
    authorizer.reread_if_changed()
    caller = authorizer.caller(key)
    looks = set()
    for op in ops.OPS:
        try:
            authorizer.authorize(caller, op, None)
        except AppError:
            continue
        looks.add(op)
    assert looks == {
        "beat",
        "watch",
        "record",
        "records",
        "orphans",
        "explain",
        "inventory",
        "leases",
        "queue",
        "workloads",
        "parameters",
    }


@pytest.mark.parametrize("fields", [{"account": "A"}, {"ahead_max": 0}, {"throttled_s": 60.0}])
def test_a_reader_beats_but_limits_no_account(path: Path, fields: dict[str, Any]) -> None:
    reader, requester = added(path, "r", KeyRole.READER), added(path, "o", KeyRole.REQUESTER)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    authorizer.authorize(authorizer.caller(reader), "beat", ops.Beat())
    authorizer.authorize(authorizer.caller(requester), "beat", ops.Beat(**fields))
    with denied("'beat' with a limit or a pause of an account needs requester"):
        authorizer.authorize(authorizer.caller(reader), "beat", ops.Beat(**fields))


def test_a_key_of_a_host_authorizes_its_host_only(path: Path) -> None:
    bound, free = added(path, "a", KeyRole.HOST, host="gpu-a"), added(path, "b", KeyRole.HOST)
    operator = added(path, "o", KeyRole.OPERATOR)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    authorizer.authorize_host(authorizer.caller(bound), "gpu-a")
    authorizer.authorize_host(authorizer.caller(free), "gpu-z")
    with denied("bound to host 'gpu-a', not to 'gpu-b'"):
        authorizer.authorize_host(authorizer.caller(bound), "gpu-b")
    with denied("a session of a host needs host"):
        authorizer.authorize_host(authorizer.caller(operator), "gpu-a")


def test_a_requester_asks_for_its_own_tenant(path: Path) -> None:
    key = added(path, "a", KeyRole.REQUESTER, tenant="lab")
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    caller = authorizer.caller(key)
    authorizer.authorize(
        caller, "reserve", ops.Reserve(attempt=AttemptId("x"), request=Request(tenant="lab"))
    )
    with denied("tenant 'lab' only"):
        authorizer.authorize(
            caller, "reserve", ops.Reserve(attempt=AttemptId("x"), request=Request())
        )
    with denied("tenant 'lab' only"):
        op = ops.Attempt(holder=JobId("j"), n=1, revision=0, request=Request(tenant="b"))
        authorizer.authorize(caller, "attempt", op)


def admit(*requests: Request) -> ops.Admit:
    steps = tuple(
        PromisedStep(name=f"s{n}", job=f"j{n}", request=one) for n, one in enumerate(requests)
    )
    return ops.Admit(run="r", steps=steps, slo=Slo(latency_s=1.0))


def test_a_promise_is_for_the_tenant_of_the_key_and_within_its_priority(path: Path) -> None:
    key = added(path, "a", KeyRole.REQUESTER, tenant="lab")
    free = added(path, "b", KeyRole.REQUESTER)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    caller, anyone = authorizer.caller(key), authorizer.caller(free)
    own, foreign = Request(tenant="lab"), Request(tenant="other")
    authorizer.authorize(caller, "admit", admit(own, own))
    authorizer.authorize(anyone, "admit", admit(own, foreign))
    with denied("tenant 'lab' only, not for 'other'"):
        authorizer.authorize(caller, "admit", admit(own, foreign))
    with denied("priority 0 at most, not 5"):
        authorizer.authorize(caller, "admit", admit(own, Request(tenant="lab", priority=5)))
    for run in ("r-lab", "r-unknown"):
        authorizer.authorize(caller, "waive", ops.Waive(run=run))
    authorizer.authorize(anyone, "waive", ops.Waive(run="r-other"))
    with denied("tenant 'lab' only, not for 'other'"):
        authorizer.authorize(caller, "waive", ops.Waive(run="r-other"))


def test_floors_that_a_key_may_not_declare_are_refused_one_by_one(path: Path) -> None:
    key = added(path, "a", KeyRole.REQUESTER, tenant="lab")
    reader, chief = added(path, "r", KeyRole.READER), added(path, "o", KeyRole.OPERATOR)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    asked = ({"tenant": "lab"}, {"tenant": "other"}, {"tenant": "lab", "priority": 5})
    requests = [Request(memory_mib=1, workload="w", **one) for one in asked]
    op = ops.KeepWarm(floors=tuple(WarmFloor(request=one, workers_min=1) for one in requests))
    authorizer.authorize(authorizer.caller(key), "keep_warm", op)
    denials = authorizer.denied_floors(authorizer.caller(key), op)
    assert [*denials] == [1, 2]
    assert denials[1] == "key 'a' may request for tenant 'lab' only, not for 'other'"
    assert "may request priority 0 at most, not 5" in denials[2]
    assert not authorizer.denied_floors(authorizer.caller(chief), op)
    with denied("needs requester"):
        authorizer.authorize(authorizer.caller(reader), "keep_warm", op)


@pytest.mark.parametrize(("most", "priority"), [(0, 1), (0, 100), (5, 6), (-10, 0)])
def test_a_priority_above_that_of_the_key_is_refused(path: Path, most: int, priority: int) -> None:
    key = added(path, "a", KeyRole.REQUESTER, priority_max=most)
    chief = added(path, "chief", KeyRole.OPERATOR)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    attempt = AttemptId("a:1")
    allowed, above = (Request(priority=one, tenant="t") for one in (most, priority))
    authorizer.authorize(
        authorizer.caller(key), "reserve", ops.Reserve(attempt=attempt, request=allowed)
    )
    for op, asked in {
        "reserve": ops.Reserve(attempt=attempt, request=above),
        "explain": ops.Explain(request=above),
        "attempt": ops.Attempt(
            holder=JobId("new"), n=1, revision=0, handle="", block={}, request=above
        ),
    }.items():
        authorizer.authorize(authorizer.caller(chief), op, asked)
        with denied(f"may request priority {most} at most, not {priority}") as refused:
            authorizer.authorize(authorizer.caller(key), op, asked)
        assert refused.value.details["needs"] == "priority"
    with pytest.raises(AppError, match="only a requester has a highest priority"):
        added(path, "reader", KeyRole.READER, priority_max=3)


def test_a_lease_belongs_to_its_key_and_to_operators(path: Path) -> None:
    a, operator = added(path, "a", KeyRole.REQUESTER), added(path, "o", KeyRole.OPERATOR)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    for lease in ("l-a", "l-old", "l-unknown"):
        authorizer.authorize(authorizer.caller(a), "release", ops.Release(lease=LeaseId(lease)))
    with denied("lease l-b belongs to key 'b'"):
        authorizer.authorize(authorizer.caller(a), "release", ops.Release(lease=LeaseId("l-b")))
    authorizer.authorize(authorizer.caller(operator), "release", ops.Release(lease=LeaseId("l-b")))


def acts(job: str) -> dict[str, ops.Op[Any]]:
    holder = JobId(job)
    return {
        "finish": ops.Finish(holder=holder, outcome="FAILED", reason="R"),
        "fail_attempt": ops.FailAttempt(holder=holder, revision=1, reason="R"),
        "hand_back": ops.HandBack(holder=holder, revision=1),
        "handle": ops.Handle(holder=holder, handle="h"),
        "reopen": ops.Reopen(holder=holder, revision=1, handle="h"),
    }


def takes(job: str, tenant: str) -> dict[str, ops.Op[Any]]:
    request = Request(tenant=tenant)
    return {
        "attempt": ops.Attempt(holder=JobId(job), n=1, revision=1, request=request),
        "adopt": ops.Adopt(holder=JobId(job), revision=1),
    }


def may_all(authorizer: Authorizer, key: str, ops: dict[str, ops.Op[Any]]) -> None:
    for name, op in ops.items():
        authorizer.authorize(authorizer.caller(key), name, op)


def may_none(authorizer: Authorizer, key: str, ops: dict[str, ops.Op[Any]], text: str) -> None:
    for name, op in ops.items():
        with denied(text):
            authorizer.authorize(authorizer.caller(key), name, op)


def test_a_job_belongs_to_its_owners_key_its_tenants_keys_and_operators(path: Path) -> None:
    a, b = (added(path, name, KeyRole.REQUESTER) for name in "ab")
    lab1, lab2, other = (
        added(path, name, KeyRole.REQUESTER, tenant=tenant)
        for name, tenant in (("lab1", "lab"), ("lab2", "lab"), ("x", "other"))
    )
    operator = added(path, "o", KeyRole.OPERATOR)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    for key in (a, operator):
        may_all(authorizer, key, acts("j-a"))
    for key in (b, lab1, other):
        may_none(authorizer, key, acts("j-a"), "job j-a belongs to key 'a'")
    for key in (lab1, lab2, operator):
        may_all(authorizer, key, acts("j-lab") | takes("j-lab", "lab"))
    for key in (a, other):
        may_none(authorizer, key, acts("j-lab"), "job j-lab belongs to key 'lab1'")
    may_all(authorizer, b, takes("j-a", "lab"))  # the core answers CONFLICT, with the record


def test_a_job_without_any_key_belongs_to_every_key_but_another_tenants(path: Path) -> None:
    a, operator = added(path, "a", KeyRole.REQUESTER), added(path, "o", KeyRole.OPERATOR)
    lab = added(path, "lab1", KeyRole.REQUESTER, tenant="lab")
    other = added(path, "x", KeyRole.REQUESTER, tenant="other")
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    for job in ("j-orphan", "j-gone", "j-left-gone"):
        for key in (a, lab, operator):
            may_all(authorizer, key, acts(job) | takes(job, "lab"))
        ops = acts(job) | takes(job, "other")
        may_none(authorizer, other, ops, f"tenant 'other' only; job {job} is of 'lab'")
    for job in ("j-ended", "j-old", "j-unknown"):
        may_all(authorizer, other, acts(job) | takes(job, "other"))


def test_a_job_without_an_owner_belongs_to_the_key_that_made_it(path: Path) -> None:
    """Not anybody's to take, reopen or end, but for its tenant's other keys and operators."""
    a, b, operator = (
        added(path, name, role)
        for name, role in (
            ("a", KeyRole.REQUESTER),
            ("b", KeyRole.REQUESTER),
            ("o", KeyRole.OPERATOR),
        )
    )
    lab2 = added(path, "lab2", KeyRole.REQUESTER, tenant="lab")
    added(path, "lab1", KeyRole.REQUESTER, tenant="lab")
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    for key in (a, operator):
        may_all(authorizer, key, acts("j-left") | takes("j-left", "lab"))
    for key in (b, lab2):
        may_none(
            authorizer, key, acts("j-left") | takes("j-left", "lab"), "j-left belongs to key 'a'"
        )
    for key in (lab2, operator):
        may_all(authorizer, key, acts("j-left-lab") | takes("j-left-lab", "lab"))
    may_none(authorizer, b, takes("j-left-lab", "lab"), "belongs to key 'lab1'")
    assert authorizer.foreign_to(authorizer.caller(a)) == ("b", "o", "lab2", "lab1")
    assert authorizer.foreign_to(authorizer.caller(lab2)) == ("a", "b", "o")
    assert authorizer.foreign_to(authorizer.caller(operator)) == ()


def test_a_job_whose_owner_is_away_is_not_open_to_other_keys(path: Path) -> None:
    """The core would let any session take it."""
    a, b = (added(path, name, KeyRole.REQUESTER) for name in "ab")
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    may_all(authorizer, a, acts("j-away") | takes("j-away", "lab"))
    may_none(authorizer, b, acts("j-away") | takes("j-away", "lab"), "j-away belongs to key 'a'")


def touched(path: Path) -> None:
    """File systems count time in steps: make sure that this is another one."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def test_a_revoked_key_loses_its_connections_and_no_other_does(path: Path) -> None:
    a, b = added(path, "a", KeyRole.READER), added(path, "b", KeyRole.READER)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    first, second = Connection(), Connection()
    authorizer.track(first, authorizer.caller(a))
    authorizer.track(second, authorizer.caller(b))
    revoke_key(path, "a")
    touched(path)
    authorizer.reread_if_changed()
    assert (first.closed, second.closed) == (True, False)
    with denied("unknown or revoked"):
        authorizer.caller(a)
    authorizer.untrack(second)
    revoke_key(path, "b")
    touched(path)
    authorizer.reread_if_changed()
    assert not second.closed


def test_the_first_key_closes_connections_without_one(path: Path) -> None:
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    open_one = Connection()
    authorizer.track(open_one, authorizer.caller(None))
    added(path, "a", KeyRole.READER)
    authorizer.reread_if_changed()
    assert open_one.closed
    with denied("a key is needed"):
        authorizer.caller(None)
    with denied("unknown or revoked"):
        authorizer.caller(17)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{")])
def test_an_invalid_keys_file_leaves_the_last_keys_in_force(path: Path, spoil: object) -> None:
    key = added(path, "a", KeyRole.READER)
    authorizer = Authorizer(path, owner_of, job_of, run_of)
    assert callable(spoil)
    spoil(path)
    authorizer.reread_if_changed()
    assert authorizer.caller(key).name == "a"
    with denied("a key is needed"):
        authorizer.caller(None)
