"""A server of another middleware is isolated as far as it bears it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corekit.ids import HostId
from gpu_scheduler.model import Door, LeaseLifetime
from remote_gpu.host.servers.visible import visible_devices
from remote_gpu.middleware import find

from .conftest import Gpud, running_gpud, until

#: Starts a process that leaves its session and group, then reports its user and place, and whether
#: it may write where PoCL keeps its compiled kernels, which takes no relative path, and serves.
SERVER = """#!/usr/bin/perl
use IO::Socket::INET; use POSIX;
if (!fork) { POSIX::setsid(); exec "/bin/sleep", "%(mark)s"; }
my $folder = $ENV{POCL_CACHE_DIR} || "/proc/self/cwd";
my $made = $folder =~ m{^/} && mkdir("$folder/kernels");
my $cache = $made && -w "$folder/kernels" ? "cached" : "closed";
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 5,
                                   LocalPort => $ENV{LUPINE_PORT} || $ARGV[-1]) or die;
while (my $client = $server->accept) {
    my $key = open(my $file, "<", "/proc/" . getppid() . "/environ") ? "read" : "closed";
    print $client "$< $( $key $cache\\n"; close $client;
}
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of servers; run as root"),
    pytest.mark.skipif(not Path("/usr/bin/perl").exists(), reason="the server is in Perl"),
]


@pytest.fixture
def mark() -> str:
    return str(10**9 + secrets.randbelow(10**9))


@pytest.fixture
def gpud(tmp_path: Path, mark: str) -> Iterator[Gpud]:
    folder = Path(tempfile.mkdtemp(prefix="servers-", dir="/tmp"))  # that others may pass
    folder.chmod(0o755)
    program = folder / "server"
    program.write_text(SERVER % {"mark": mark})
    program.chmod(0o755)
    programs = {"lupine": program}
    if find("pocl").refusal(asyncio.run(visible_devices(HostId("here")))) is None:
        programs["pocl"] = program
    with running_gpud(tmp_path, middlewares=programs) as started:
        yield started
    shutil.rmtree(folder)


def served(gpud: Gpud, middleware: str = "lupine") -> tuple[Any, int]:
    """A lease, and the report of its server: its user, its group, whether it read gpud."""
    install = gpud.install(
        hold=LeaseLifetime.DEADLINE,
        door=Door.PORT,
        cap_s=600.0,
        sources=("127.0.0.0/8",),
        middleware=middleware,
    )

    def addresses() -> list[str]:
        messages = gpud.scheduler.messages
        return [f["address"] for op, f in messages if op == "door" and f["lease"] == install.lease]

    until(addresses)
    with socket.create_connection(
        ("127.0.0.1", int(addresses()[0].rpartition(":")[2])), 60
    ) as stream:
        user, *groups, key, cache = stream.makefile("rb").readline().decode().split()
    assert key == "closed"
    assert cache == "cached", "a server may write to its own folder"
    assert {user} == set(groups)
    return install, int(user)


def running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def test_each_server_has_a_user_and_leaves_no_process(gpud: Gpud, mark: str) -> None:
    leases = [served(gpud) for _ in range(2)]
    users = {user for _, user in leases}
    assert len(users) == 2
    assert min(users) >= 2_000_000_000
    until(lambda: len(running(mark)) == 2)
    for install, _ in leases:
        gpud.scheduler.end(install)
        until(functools.partial(gpud.scheduler.is_cut, install.lease))
    assert running(mark) == []


def test_a_user_of_its_own_reaches_the_folder_that_a_variable_names(gpud: Gpud) -> None:
    """The state folder above it is closed to all users but gpud's."""
    if (why := find("pocl").refusal(asyncio.run(visible_devices(HostId("here"))))) is not None:
        pytest.skip(f"this machine may not offer pocl: {why}")
    install, user = served(gpud, "pocl")
    assert user >= 2_000_000_000
    gpud.scheduler.end(install)
    until(functools.partial(gpud.scheduler.is_cut, install.lease))
    assert not list((gpud.state / "servers").iterdir())
