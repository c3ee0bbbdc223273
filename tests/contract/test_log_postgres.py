"""The PostgreSQL engine: passwords, weak durability, lost and hanging connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.log.engines.postgres import PostgresLog
from gpu_scheduler.daemon.log.port import Log
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from tests.log_engines import CALL_S
from tests.postgres_server import PostgresServer, postgres_server

CANARY = "canary-of-a-password"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    access = "local all keyed scram-sha-256"
    with postgres_server({"synchronous_commit": "off"}, access) as running:
        with psycopg.connect(conninfo(running)) as connection:
            connection.execute(b"CREATE ROLE keyed LOGIN PASSWORD '%s'" % CANARY.encode())
            connection.execute("GRANT ALL ON SCHEMA public TO keyed")
        yield running


def conninfo(server: PostgresServer) -> str:
    return f"host={server.folder} user=tests dbname=postgres"


def opened(address: str, call_s: float = CALL_S) -> PostgresLog:
    log: Log = open_log(parse_log_address(address), call_s)
    assert isinstance(log, PostgresLog)
    return log


def test_a_password_comes_from_a_file_and_is_in_no_message(
    server: PostgresServer, tmp_path: Path
) -> None:
    address = server.url("keyed").replace("tests@", "keyed@")
    passfile = tmp_path / "pgpass"
    for password, code in (("wrong", ErrorCode.DENIED), (None, ErrorCode.DENIED)):
        passfile.write_text("" if password is None else f"*:*:*:*:{password}")
        passfile.chmod(0o600)
        with pytest.raises(AppError) as refused:
            opened(f"{address}&passfile={passfile}")
        assert refused.value.code is code
    passfile.write_text(f"*:*:*:*:{CANARY}")
    log = opened(f"{address}&passfile={passfile}")
    assert log.put_if_absent(1, b"a")
    with psycopg.connect(conninfo(server)) as connection:
        connection.execute("ALTER ROLE keyed NOLOGIN")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keyed'"
        )
    messages = []
    for _ in range(2):
        with pytest.raises(AppError) as lost:
            log.put_if_absent(2, b"b")
        messages.append(lost.value.message)
    assert "keyed" in messages[-1]
    assert CANARY not in "".join(messages)
    log.close()


def test_a_server_that_does_not_wait_for_its_disk_is_made_to(server: PostgresServer) -> None:
    log = opened(server.url("durable"))
    with log._connected() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    log.close()


def test_a_lost_connection_is_opened_again(server: PostgresServer) -> None:
    log = opened(server.url("lost"))
    assert log.put_if_absent(1, b"a")
    with psycopg.connect(conninfo(server)) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'ssgmd'"
        )
    with pytest.raises(AppError) as lost:
        log.put_if_absent(2, b"b")
    assert lost.value.code is ErrorCode.UNAVAILABLE
    assert log.put_if_absent(2, b"b")
    log.close()


def test_a_put_that_waits_for_a_lock_ends_in_time(server: PostgresServer) -> None:
    log = opened(server.url("locked"), 2.0)
    with psycopg.connect(conninfo(server)) as other:
        other.execute("LOCK TABLE locked")
        with pytest.raises(AppError) as late:
            log.put_if_absent(1, b"a")
    assert late.value.code is ErrorCode.TIMEOUT
    assert log.put_if_absent(1, b"a")
    log.close()


def test_a_hanging_put_is_broken_off(server: PostgresServer) -> None:
    log = opened(server.url("hanging"))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    pause = threading.Event()
    with psycopg.connect(conninfo(server)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE hanging")
        put = pool.submit(log.put_if_absent, 1, b"a")
        for _ in range(2000):
            if other.execute(waiting).fetchone() != (0,):
                break
            pause.wait(0.01)
        log.interrupt()
        with pytest.raises(AppError) as broken:
            put.result(CALL_S)
    assert broken.value.code is ErrorCode.UNAVAILABLE
    assert log.put_if_absent(2, b"b")
    log.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("/postgres?", "/missing?"), ErrorCode.NOT_FOUND),
        (("tests@", "missing@"), ErrorCode.DENIED),
        (("host=", "host=/nonexistent"), ErrorCode.UNAVAILABLE),
        (("name=", "name=;"), ErrorCode.INVALID),
        (("name=", "nam="), ErrorCode.INVALID),
    ],
)
def test_a_wrong_address_is_refused(
    server: PostgresServer, change: tuple[str, str], code: ErrorCode
) -> None:
    with pytest.raises(AppError) as refused:
        opened(server.url("wrong").replace(*change))
    assert refused.value.code is code
