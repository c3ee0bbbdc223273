"""Answers of a standby at the socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from corekit.aio.admission import AdmissionLimits
from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.access.iam_join import IamKeyIssuer
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.daemon.standby.endpoint import StandbyConnection
from gpu_scheduler.daemon.standby.follower import StandbyStatus
from tests.sts import ROLE_ARN
from tests.unit.gpu_scheduler_daemon.test_socket_endpoint import Wire

STATUS = StandbyStatus(leader="10.0.0.2:4700", leader_http="", epoch=3, lag_s=0.1, item=7)


def answer_to(line: bytes, folder: Path, *, joins: bool) -> dict[str, Any]:
    """The error that a standby with keys sends."""

    async def main() -> bytes:
        add_key(folder / "keys.json", KeyEntry(name="op", role=KeyRole.OPERATOR, sha256="0" * 64))
        rules = folder / "roles.toml"
        server = 'server = "prod"\nsts = ["https://sts.eu-central-1.amazonaws.com"]'
        rules.write_text(f'{server}\n[[role]]\narn = "{ROLE_ARN}"\n')
        join = IamKeyIssuer(rules, LoopClock()) if joins else None
        authorizer = Authorizer(
            folder / "keys.json", lambda _: None, lambda _: None, lambda _: None, join
        )
        admission = ConnectionAdmission(AdmissionLimits.of(1000, 100), 5.0)
        connection, wire = StandbyConnection(lambda: STATUS, authorizer, admission), Wire()
        connection.connection_made(wire)
        connection.data_received(line)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        return wire.written

    answer = json.loads(run_virtual(main()))
    assert answer["id"] == 1
    error: dict[str, Any] = answer["error"]
    return error


def test_a_host_that_joins_by_its_role_gets_the_leader(tmp_path: Path) -> None:
    """It has no key before it has joined."""
    error = answer_to(b'{"id":1,"op":"join_challenge"}\n', tmp_path, joins=True)
    assert (error["code"], error["details"]["leader"]) == ("unavailable", STATUS.leader)


def test_without_joins_a_key_is_needed(tmp_path: Path) -> None:
    error = answer_to(b'{"id":1,"op":"join_challenge"}\n', tmp_path, joins=False)
    assert error["code"] == "denied"


def test_a_hello_needs_a_key_also_where_hosts_join(tmp_path: Path) -> None:
    error = answer_to(b'{"id":1,"op":"hello","role":"host"}\n', tmp_path, joins=True)
    assert error["code"] == "denied"
