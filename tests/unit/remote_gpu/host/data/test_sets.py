"""The sets of a host in its event loop: shown once to each tenant, evicted for one another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.data.files import DataFiles
from remote_gpu.host.data.library import KeptSet
from remote_gpu.host.data.sets import DataSets, _origin
from remote_gpu.host.leases.lease_log import LeaseLog
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.table import LeaseTable
from tests.installs import install_of, share_of

pytestmark = pytest.mark.asyncio
SPACE_BYTES = 1000


def declared(name: str, source: str = "s3://data/") -> DataSet:
    return DataSet(name=name, source=f"{source}{name}", digest="0" * 64)


def lease(number: int, *sets: DataSet, tenant: str = "t") -> Install:
    return install_of(number, share_of("d0"), tenant=tenant, data_sets=sets)


class Files(DataFiles):
    """Those of a host, with an act in the loop during the first removal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data", folder / "views")
        self.during: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()

    def remove(self, key: str) -> None:
        """Remove a set, after the act."""
        act, self.during = self.during, lambda: None
        done = threading.Event()
        self._loop.call_soon_threadsafe(act)
        self._loop.call_soon_threadsafe(done.set)
        assert done.wait(30.0)
        super().remove(key)

    def put(self, one: DataSet, files: int, size_bytes: int) -> None:
        """A whole set of an earlier run."""
        folder = self.partial(one.key) / "files"
        folder.mkdir()
        for number in range(files):
            (folder / f"part-{number}").write_bytes(b"x")
        self.publish(KeptSet(key=one.key, origin="s3://data", bytes=size_bytes, whole=True))


class Host:
    """The leases and sets of a host without workers."""

    def __init__(self, leases: Leases, files: Files, sets: DataSets) -> None:
        self.leases, self.files, self.sets = leases, files, sets

    def install(self, install: Install) -> Install:
        """As the scheduler does."""
        self.leases.apply(self.leases.table.install(install, 0.0))
        self.sets.needed(install)
        return install

    async def shown(self, *installs: Install) -> None:
        """Wait until these leases have their sets; none has ended."""

        def ready() -> bool:
            assert all(self.leases.table.find(one.lease) is not None for one in installs)
            return all(not self.leases.table.data.lacked(one) for one in installs)

        assert await self.leases.until(ready, 30.0)


@asynccontextmanager
async def host(folder: Path, *kept: tuple[DataSet, int, int]) -> AsyncIterator[Host]:
    """A host that has these sets: with so many files and bytes."""
    files = Files(folder)
    for one in kept:
        files.put(*one)
    with closing(LeaseLog(folder / "leases.jsonl")) as log:
        async with Nursery("test") as nursery:
            leases = Leases(LeaseTable({DeviceId("d0"): 1000}, 30.0), log)
            yield Host(leases, files, DataSets(leases, files, SPACE_BYTES, nursery, lambda: None))


async def test_leases_that_share_a_set_are_all_shown_it(tmp_path: Path) -> None:
    weights = declared("weights")
    async with host(tmp_path, (weights, 300, 300)) as one:
        leases = [lease(n, weights, tenant=f"t{n % 3}") for n in range(12)]
        for install in leases:
            one.install(install)
        await one.shown(*leases)
        for install in leases:
            assert len([*one.sets.folders(install)["weights"].iterdir()]) == 300


async def test_a_set_that_is_about_to_be_removed_is_given_to_no_lease(tmp_path: Path) -> None:
    old, older, new = (declared(name) for name in ("old", "older", "new"))
    async with host(tmp_path, (old, 1, 400), (older, 1, 400)) as one:
        users = [one.install(lease(n, kept)) for n, kept in enumerate((old, older))]
        await one.shown(*users)
        for install in users:
            one.leases.end(install.lease, EndReason.DONE, "")
            one.leases.table.gone(install.lease)
        found: list[bool] = []
        again = [lease(7, old), lease(8, older)]

        def looked() -> None:
            found.extend(one.leases.table.data.has("t", kept.key) for kept in (old, older))
            for install in again:
                one.leases.apply(one.leases.table.install(install, 0.0))

        one.files.during = looked
        await one.sets._make_room(KeptSet(key=new.key, origin="s3://data", bytes=900))
        assert found == [False, False]
        assert [*one.sets.held()] == [new.key]
        assert all(one.leases.table.data.lacked(install) for install in again)


async def test_two_fetches_have_room_of_their_own(tmp_path: Path) -> None:
    kept = [declared(f"kept-{n}") for n in range(2)]
    new = [declared(f"new-{n}") for n in range(3)]
    async with host(tmp_path, *((one, 1, 500) for one in kept)) as one:
        made = [
            one.sets._make_room(KeptSet(key=fresh.key, origin="s3://data", bytes=500))
            for fresh in new[:2]
        ]
        one.sets._fetching.update(dict.fromkeys(fresh.key for fresh in new))
        await asyncio.gather(*made)
        assert {*one.sets.library.sets} == {fresh.key for fresh in new[:2]}
        assert one.sets.evicted == 2
        with pytest.raises(Exception, match="no space for"):
            await one.sets._make_room(KeptSet(key=new[2].key, origin="s3://data", bytes=500))


async def test_any_error_of_a_fetch_ends_its_leases(tmp_path: Path) -> None:
    async with host(tmp_path) as one:
        weights = replace(declared("weights"), bytes=10)

        def broken(key: str) -> Path:
            raise ValueError(f"malformed {key}")

        one.files.partial = broken  # type: ignore[method-assign]
        install = one.install(lease(1, weights))
        assert await one.leases.until(lambda: one.leases.table.find(install.lease) is None, 30.0)
        assert not one.sets._fetching


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        ("s3://models/a/b", "s3://models"),
        ("hf://acme/reader@main", "hf://"),
        ("oci://h:5000/a/b@sha256:0", "oci://h:5000"),
        ("https://h/a/b#sha256=0", "https://h"),
        ("https://[x/a#sha256=0", "https://[x"),  # its fetch names what is wrong
    ],
)
async def test_fetches_from_one_origin_have_one_rate(source: str, origin: str) -> None:
    assert _origin(source) == origin
