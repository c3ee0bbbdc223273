"""The files that a lease's processes may access."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_gpu.isolation import bind_mounts, landlock, places


def test_paths_of_a_lease(tmp_path: Path) -> None:
    data, own, program = tmp_path / "data", tmp_path / "own", tmp_path / "program"
    host = places.HostFiles(data=(data,), programs=(program,))

    def rights(
        *, execute: bool = False, link: bool = False, own_proc: bool = True
    ) -> dict[str, int]:
        found = places.allowed(
            host, [tmp_path / "lib"], [own], ["cpu"], execute=execute, link=link, own_proc=own_proc
        )
        return {str(path): access for path, access in found}

    plain = rights()
    assert plain[str(data)] == landlock.READ
    assert plain[str(own)] & landlock.WRITE == landlock.WRITE
    assert not any(access & landlock.EXECUTE for access in plain.values())
    linking = {path for path, access in rights(link=True).items() if access & landlock.EXECUTE}
    assert linking
    assert all("ld" in Path(path).name for path in linking)
    assert rights(execute=True)[str(program)] & landlock.EXECUTE
    assert "/proc" not in rights(own_proc=False)
    for path, access in plain.items():
        writes = access & ~(landlock.READ | landlock.EXECUTE)
        assert not writes or path == str(own) or path.startswith("/dev/"), path


def test_a_secret_in_a_folder_that_leases_read_is_found(tmp_path: Path) -> None:
    host = places.HostFiles(data=(tmp_path / "data",))
    assert places.read_by_leases(tmp_path / "data" / "key", host) == tmp_path / "data"
    assert places.read_by_leases(tmp_path / "state", host) is None
    assert places.read_by_leases(Path("/usr/local/state"), host) == Path("/usr")


def test_leases_read_the_folders_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver there was found by gpud, and is loaded by its workers."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}:relative:/nonexistent")
    before = places.libraries()
    assert tmp_path in before
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert [one for one in before if one not in places.libraries()] == [tmp_path]


def test_folders_closed_to_other_users(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "below" / "more").mkdir(parents=True)
    outer = bind_mounts.closed_above(tmp_path / "x")
    closed.chmod(0o700)
    assert bind_mounts.closed_above(closed / "below" / "more") == (outer or closed)
    found = bind_mounts.outermost([closed, closed / "below", tmp_path / "absent"])
    assert found == [closed.resolve()]
