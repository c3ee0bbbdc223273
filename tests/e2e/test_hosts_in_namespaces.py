"""Hosts that share neither network nor memory: what only seems to work on one machine fails here.

One scheduler, two hosts and a function, each in a namespace of its own, with keys, over a bridge.
The servers of other middlewares are stand-ins; their clients behave as the real ones do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system_in_namespaces import OWN_CLIENT, System
from tests.namespaces import machines, why_not

STANDIN = Path(__file__).parents[1] / "integration/gpud/standin.py"

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: Asks every server of the lease for its facts; as Lupine's client, it knows a list of them.
LIST_CLIENT = """
import json, os, socket, struct
facts = []
for address in os.environ["LUPINE_SERVER"].split(","):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 60) as stream, stream.makefile("rwb") as words:
        def hear():
            return words.read(struct.unpack("!I", words.read(4))[0])
        hear()
        words.write(struct.pack("!I", 5) + b"facts"); words.flush()
        facts.append(json.loads(hear()))
print(json.dumps([one["network"] for one in facts]))
"""

#: As Cricket's client: with a server that seems to be on its own machine it shares memory.
CAREFUL_CLIENT = """
import os, pathlib, socket, struct
host, port = os.environ["REMOTE_GPU_ADDRESS"].split(":")
shared = pathlib.Path("/dev/shm/cricket-buffer")
shared.write_bytes(b"by memory")
with socket.create_connection((host, int(port)), 60) as stream, stream.makefile("rwb") as words:
    def ask(body):
        words.write(struct.pack("!I", len(body)) + body); words.flush()
        return words.read(struct.unpack("!I", words.read(4))[0])
    words.read(struct.unpack("!I", words.read(4))[0])
    by_memory = b"local " + bytes(shared)
    is_local = stream.getsockname()[0] == stream.getpeername()[0]
    print(ask(by_memory if is_local else b"by wire").decode())
    print(ask(by_memory).decode())
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("namespaces")
    servers = folder / "server"
    servers.write_text(f"#!{sys.executable} -S\n{STANDIN.read_text()}")
    servers.chmod(0o755)
    with machines("scheduler", "gpu-a", "gpu-b", "function") as made:
        system = System(folder, made)
        try:
            system.start_scheduler()
            for host in ("gpu-a", "gpu-b"):
                servers_of_host = (
                    f"--middleware={name}={servers}" for name in ("lupine", "cricket")
                )
                system.start_host(host, f"{made[host].address}:0", *servers_of_host)
            for host in ("gpu-a", "gpu-b"):
                made["function"].hide(folder / host)  # another machine has no file of a host
            yield system
        finally:
            system.close()


def test_each_address_of_a_client_leads_to_its_own_host(system: System) -> None:
    named = json.loads(system.run_on_lease("lupine", 2, LIST_CLIENT))
    assert len(named) == 2
    assert len(set(named)) == 2


def test_a_client_that_asks_whether_its_server_is_local_does_not_share_memory(
    system: System,
) -> None:
    by_wire, by_memory = system.run_on_lease("cricket", 1, CAREFUL_CLIENT).splitlines()
    assert by_wire == "by wire"
    assert by_memory == "no shared memory: No such file or directory"  # it would have failed


def test_the_built_in_data_plane_needs_no_network_of_the_host(system: System) -> None:
    assert system.run_on_lease("builtin", 2, OWN_CLIENT).split() == ["True", "True"]
