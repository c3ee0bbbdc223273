"""Images whose code attacks its host: what hostile commands find in their container."""

from __future__ import annotations

import socket

import pytest

from remote_gpu.isolation.policy import TASKS_MAX
from tests.integration.containers.conftest import USER, Hosted
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio


@no_task_left
async def test_it_has_the_leases_user_and_no_right(hosted: Hosted) -> None:
    status, mount, processes = (
        await hosted.ran(*["status", ",", "mount", ",", "list", "/proc"])
    ).parts
    found = dict(line.split(":", 1) for line in status.splitlines())
    assert found["Uid"].split() == [str(USER)] * 4
    assert {found[name].strip() for name in found if name.startswith("Cap")} == {16 * "0"}
    assert found["NoNewPrivs"].strip() == "1"
    assert found["Seccomp"].strip() == "2"
    assert "done" not in mount
    assert 1 <= len([name for name in processes.split() if name.isdigit()]) <= 3  # init, itself


@no_task_left
async def test_it_reaches_no_network(hosted: Hosted) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        words = f"connect 127.0.0.1 {port} , connect 192.0.2.1 443 , list /sys/class/net"
        own, outside, interfaces = (await hosted.ran(*words.split())).parts
    assert "refused" in own
    assert "unreachable" in outside
    assert set(interfaces.split()) == {".", "..", "lo"}


@no_task_left
async def test_with_a_network_it_does_not_reach_the_loopback(hosted: Hosted) -> None:
    if hosted.host.runtime.network_refused:
        pytest.skip(f"NOT TESTED: the network; {hosted.host.runtime.network_refused}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        # the second is slirp4netns' name for its host
        words = f"list /sys/class/net , connect 127.0.0.1 {port} , connect 10.0.2.2 {port}"
        interfaces, *tried = (await hosted.ran(*words.split(), network=True)).parts
        assert "tap0" in interfaces
        assert not [one for one in tried if "done" in one]
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


@no_task_left
async def test_it_sees_and_writes_its_own_folder_and_tmp_alone(hosted: Hosted) -> None:
    closed = ("/root-file", "/program", "/proc/sys/kernel/core_pattern", "/dev/mem", "/etc/x")
    words = [word for path in closed for word in ("write", path, ",")]
    words += ["write", "/tmp/x", ",", "write", "own", ",", "list", str(hosted.place)]
    async with hosted.run(hosted.order(*words)) as one:
        *refused, tmp, own, seen = (await hosted.whole(one)).parts
        assert len(refused) == len(closed)
        assert not [line for line in refused if "done" in line]
        assert "done" in tmp
        assert "done" in own
        assert (one.folder / "own").stat().st_uid == USER
        assert set(seen.split()) == {".", "..", one.folder.name}


@no_task_left
async def test_forks_end_at_the_limit_of_tasks(hosted: Hosted) -> None:
    ran = await hosted.ran("fork", memory_mib=1024)
    assert 0 < int(ran.output.split()[0]) < TASKS_MAX
