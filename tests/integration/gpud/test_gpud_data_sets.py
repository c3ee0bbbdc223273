"""Declared data sets of a real gpud, from the embedded S3 over a throttled link."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.values import replace
from gpu_scheduler.data_manifest import digest_of, manifest_of, s3_files
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import OpFailed, connect
from tests.embedded_cloud import Address, client_of, cloud_in
from tests.integration.gpud.conftest import Gpud, running_gpud, until
from tests.integration.gpud.test_gpud_advance import Start

KIB = 1 << 10
OPERATIONS = ("noop", "sequence_search")
FASTA = b">a first\nMKV\n>b\nMKVLAA\n"


class Link:
    """A TCP proxy that passes at most so many bytes a second of the answers."""

    def __init__(self, port: int) -> None:
        self.bytes_per_s = 1e9
        self.passed_bytes = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                self._start(client, server, answers=False)
                self._start(server, client, answers=True)

    def _start(self, source: socket.socket, target: socket.socket, *, answers: bool) -> None:
        thread = threading.Thread(target=self._pass, args=(source, target, answers))
        self._threads.append(thread)
        thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(8 * KIB):
                target.sendall(data)
                if answers:
                    self.passed_bytes += len(data)
                    time.sleep(len(data) / self.bytes_per_s)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()


class Store:
    """The embedded S3, its bucket of data, and the link to it."""

    def __init__(self, cloud: Address, s3: Any, link: Link) -> None:
        self.cloud, self.s3, self.link = cloud, s3, link

    def put(self, prefix: str, files: dict[str, bytes], name: str = "weights") -> DataSet:
        """Store files, and declare them as a set."""
        for path, data in files.items():
            self.s3.put_object(Bucket="data", Key=f"{prefix}/{path}", Body=data)
        return self.declare(prefix, name)

    def declare(self, prefix: str, name: str = "weights") -> DataSet:
        source = f"s3://data/{prefix}"
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix=prefix)
        manifest = manifest_of(source, dict(s3_files(pages, prefix)).values())
        digest = digest_of(manifest)
        return DataSet(name=name, source=source, digest=digest, bytes=manifest.bytes or 0)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.link.address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with (
        cloud_in(tmp_path_factory.mktemp("cloud")) as cloud,
        client_of(cloud, "s3") as s3,
        contextlib.closing(Link(cloud.port)) as link,
    ):
        s3.create_bucket(Bucket="data")
        yield Store(cloud, s3, link)


@contextlib.contextmanager
def fetching_gpud(folder: Path, store: Store, *options: str) -> Iterator[Gpud]:
    given = ("--data-space", "0.001", *options)  # 1 MiB
    with running_gpud(folder, *given, operations=OPERATIONS, variables=store.variables) as gpud:
        yield gpud


@pytest.fixture(scope="module")
def _gpud_of_this_file(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Iterator[Gpud]:
    with fetching_gpud(tmp_path_factory.mktemp("gpud"), store) as gpud:
        yield gpud


def held(gpud: Gpud) -> dict[str, int]:
    """The sets that the host has published."""
    found: dict[str, int] = {}
    for report in [gpud.hello, *gpud.scheduler.reports]:
        change = report.get("held") or {}
        found |= {one["key"]: one["bytes"] for one in change.get("added", ())}
        for key in change.get("removed", ()):
            found.pop(key, None)
    return found


def refusal_of(gpud: Gpud, install: Install, reason: str = "REVOKED") -> str:
    """Why the host ended a lease, for this reason."""

    def ends() -> list[tuple[str, str]]:
        return [
            (fields["reason"], fields["detail"])
            for op, fields in gpud.scheduler.messages
            if op == "session" and fields["lease"] == install.lease and fields["state"] == "closed"
        ]

    until(ends)
    found, why = ends()[0]
    assert found == reason, why
    return why


def random_files(count: int, size_bytes: int) -> dict[str, bytes]:
    return {f"part-{n}": os.urandom(size_bytes) for n in range(count)}


def search(gpud: Gpud, install: Install, database: str) -> int:
    """The hits of a search in a database of the lease."""
    with (
        gpud.open(install, wait_s=60.0) as session,
        connect(session.environment()) as device,
    ):
        data = device.data(database)
        assert bytes(data.read()) == FASTA
        found = device.op("sequence_search", b">q\nMKVLAA\n", database=data, file="q")
        return int(found.values["hits"])


def test_a_set_of_one_file_is_a_database_of_its_lease(shared_gpud: Gpud, store: Store) -> None:
    proteins = store.put("one", {"small.fasta": FASTA}, "proteins")
    install = shared_gpud.install(data_sets=(proteins,))
    assert search(shared_gpud, install, "proteins") == 2
    other = shared_gpud.install(tenant="other")
    with pytest.raises(OpFailed, match="no data 'proteins'"):
        search(shared_gpud, other, "proteins")
    until(lambda: held(shared_gpud).get(proteins.key) == len(FASTA))


def test_two_leases_share_one_fetch(shared_gpud: Gpud, store: Store) -> None:
    files = random_files(2, 100 * KIB)
    weights, before = store.put("shared", files), store.link.passed_bytes
    installs = [shared_gpud.install(64, data_sets=(weights,)) for _ in range(2)]
    for install in installs:
        shared_gpud.open(install, wait_s=60.0).close()
    assert store.link.passed_bytes - before < 250 * KIB
    assert len(shared_gpud.logged("a data set is here")) >= 1


def test_a_lease_ahead_fetches_before_it_is_booked(shared_gpud: Gpud, store: Store) -> None:
    weights = store.put("ahead", random_files(1, 10 * KIB))
    install = shared_gpud.install(64, data_sets=(weights,), ahead=True)
    until(lambda: held(shared_gpud).get(weights.key) == 10 * KIB)
    start = Start(shared_gpud, install, wait_s=60.0)
    shared_gpud.scheduler.install(replace(install, ahead=False))
    start.opened().close()


def test_a_source_that_has_changed_is_refused(shared_gpud: Gpud, store: Store) -> None:
    weights = store.put("changed", {"a": b"old"})
    store.put("changed", {"a": b"new"})
    why = refusal_of(shared_gpud, shared_gpud.install(data_sets=(weights,)), "DATA_ERROR")
    assert "data set weights: s3://data/changed has other content than was declared" in why
    assert weights.digest[:12] in why


def test_a_source_that_is_absent_is_refused(shared_gpud: Gpud) -> None:
    absent = DataSet(name="w", source="s3://nowhere/x", digest="0" * 64)
    why = refusal_of(shared_gpud, shared_gpud.install(data_sets=(absent,)), "DATA_ERROR")
    assert why == "data set w: s3://nowhere/x does not exist"


def test_a_set_without_space_is_refused_and_eviction_keeps_what_is_used(
    tmp_path: Path, store: Store
) -> None:
    sets = [store.put(f"space-{n}", random_files(1, 400 * KIB)) for n in range(3)]
    large = store.put("large", random_files(1, 1100 * KIB))
    with fetching_gpud(tmp_path, store) as gpud:
        first = gpud.install(64, data_sets=(sets[0],))
        session = gpud.open(first, wait_s=60.0)
        why = refusal_of(gpud, gpud.install(64, data_sets=(large,)))
        assert "data set weights: no space for" in why
        assert "--data-space" in why
        for one in sets[1:]:
            gpud.open(gpud.install(64, data_sets=(one,)), wait_s=60.0).close()
        until(lambda: set(held(gpud)) == {sets[0].key, sets[2].key})
        session.close()


def test_a_fetch_goes_on_after_gpud_was_killed(tmp_path: Path, store: Store) -> None:
    weights = store.put("killed", random_files(12, 64 * KIB))
    (tmp_path / "first").mkdir()
    store.link.bytes_per_s = 100 * KIB
    try:
        with running_gpud(
            tmp_path / "first",
            "--data-space=0.001",
            variables=store.variables,
        ) as gpud:
            gpud.install(data_sets=(weights,))
            until(lambda: 0 < held(gpud).get(weights.key, 0) < weights.bytes - 200 * KIB)
            log = next((gpud.state / "data" / "partial").rglob("parts.jsonl"))
            until(lambda: len(log.read_bytes().splitlines()) > 3)
            gpud.process.send_signal(signal.SIGKILL)
            gpud.process.wait()
    finally:
        store.link.bytes_per_s = 1e9
    before = store.link.passed_bytes
    with again(tmp_path / "first", store) as gpud:
        assert 0 < sum(held(gpud).values()) <= weights.bytes
        install = gpud.install(data_sets=(weights,))
        gpud.open(install, wait_s=60.0).close()
        assert store.link.passed_bytes - before < 620 * KIB  # 3 parts of 64 KiB were there
        (view,) = (gpud.state / "data-views").glob("*/*")
        for path in view.iterdir():
            stored = store.s3.get_object(Bucket="data", Key=f"killed/{path.name}")["Body"].read()
            assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(stored).digest()


@contextlib.contextmanager
def again(folder: Path, store: Store) -> Iterator[Gpud]:
    (folder / "ready.json").unlink()
    with running_gpud(folder, "--data-space=0.001", variables=store.variables) as gpud:
        yield gpud
