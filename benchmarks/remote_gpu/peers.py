"""Other ways to carry calls and bytes to a device, measured in turns with ours on the same cores.

    call_us       the smallest call that has an answer, median
    there_gb_s    64 MiB to the device, answered
    back_gb_s     64 MiB from the device

    python -m benchmarks.remote_gpu.peers [--json] [--rounds N] [--python FILE]

Peers: `rgpu` (torch tensors on a remote op server, its CPU device; the smallest call is an addition
of 16 numbers and its download) and a `grpc` echo (the bytes themselves, no device). `--python`,
or the variable PEERS_PYTHON, names the interpreter that has `grpcio` and `rgpu` from the registry;
missing ones are skipped with the reason. PoCL-Remote is not among them: no registry has its server.
Servers are on the first core we may use, clients on the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.measure import median_s
from benchmarks.processes import await_port, free_port, workspace
from benchmarks.remote_gpu.host import Host, from_elsewhere
from benchmarks.remote_gpu.transport import BULK_BYTES
from remote_gpu.client import Device, Lane

CALLS = 500
BULKS = 5
LIMIT_S = 120.0
METRICS = ("call_us", "there_gb_s", "back_gb_s")

#: The common beginning of every peer's program.
_MEASURE = """
import json, statistics, sys, time

def median_s(call, count):
    for _ in range(3):
        call()
    took = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)

port, size, calls, bulks = map(int, sys.argv[1:])

def tell(call, there, back):
    print(json.dumps({
        "call_us": 1e6 * median_s(call, calls),
        "there_gb_s": size / median_s(there, bulks) / 1e9,
        "back_gb_s": size / median_s(back, bulks) / 1e9,
    }))
"""
GRPC_SERVER = """
import sys, time
from concurrent import futures
import grpc

memory = bytes(int(sys.argv[2]))
replies = {
    "/p/Echo": lambda data, _: data, "/p/Take": lambda data, _: b"", "/p/Give": lambda *_: memory,
}

class Handler(grpc.GenericRpcHandler):
    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(replies[call.method])

server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Handler(),), options=[
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
"""
GRPC_CLIENT = (
    _MEASURE
    + """
import grpc
channel = grpc.insecure_channel("127.0.0.1:%d" % port, options=[
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
echo, take, give = (channel.unary_unary("/p/" + name) for name in ("Echo", "Take", "Give"))
data = bytes(size)
tell(lambda: echo(b""), lambda: take(data), lambda: give(b""))
"""
)
RGPU_CLIENT = (
    _MEASURE
    + """
import os, warnings
warnings.simplefilter("ignore")
os.environ["RGPU_OPSERVER"] = "127.0.0.1:%d" % port
import torch, rgpu
small, data = torch.zeros(16).to("rgpu"), torch.zeros(size // 4)
there = data.to("rgpu")
tell(lambda: (small + 1).cpu(), lambda: data.to("rgpu")[:1].cpu(), lambda: there.cpu())
"""
)


class Missing(Exception):
    """The reason why a peer cannot run here."""


class Peer:
    """A server on its core, and a program that measures it."""

    def __init__(
        self, stack: contextlib.ExitStack, core: int, command: list[str], port: int, client: str
    ) -> None:
        self._port = port
        self._client = client
        server = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(server.terminate)
        os.sched_setaffinity(server.pid, {core})
        try:
            await_port(server, port)
        except RuntimeError as error:
            raise Missing(str(error)) from None

    def ask(self, python: str) -> dict[str, float]:
        """One round."""
        numbers = map(str, (self._port, BULK_BYTES, CALLS, BULKS))
        done = subprocess.run(
            [python, "-c", self._client, *numbers],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise Missing((done.stderr.strip().splitlines() or ["it failed"])[-1])
        answer: dict[str, float] = json.loads(done.stdout)
        return answer


def _needs(python: str, module: str) -> None:
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode != 0:
        raise Missing(f"{python} has no {module}")


def grpc(stack: contextlib.ExitStack, python: str, core: int) -> Peer:
    """The echo."""
    _needs(python, "grpc")
    port = free_port()
    command = [python, "-c", GRPC_SERVER, str(port), str(BULK_BYTES)]
    return Peer(stack, core, command, port, GRPC_CLIENT)


def rgpu(stack: contextlib.ExitStack, python: str, core: int) -> Peer:
    """Its op server listens where it likes: one at a time on a machine."""
    program = Path(python).with_name("rgpu-opserver")
    if not program.exists():
        raise Missing(f"no rgpu-opserver beside {python}")
    command = [str(program), "--device", "cpu", "--bind", "127.0.0.1"]
    return Peer(stack, core, command, 9720, RGPU_CLIENT)


PEERS: dict[str, Callable[[contextlib.ExitStack, str, int], Peer]] = {"grpc": grpc, "rgpu": rgpu}


def ours(device: Device, source: bytearray, target: bytearray) -> dict[str, float]:
    """One round of the built-in plane."""
    buffer = device.buffer(BULK_BYTES)
    try:
        return {
            "call_us": 1e6 * median_s(lambda: device.op("noop"), CALLS),
            "there_gb_s": BULK_BYTES / median_s(lambda: buffer.write(source), BULKS) / 1e9,
            "back_gb_s": BULK_BYTES / median_s(lambda: buffer.read(out=target), BULKS) / 1e9,
        }
    finally:
        buffer.free()


def measure(device: Device, python: str, core: int, rounds: int) -> list[report.Figure]:
    """Every peer and ours in turns; medians of the rounds."""
    source, target = bytearray(BULK_BYTES), bytearray(BULK_BYTES)
    found: list[report.Figure] = []
    for name, make in PEERS.items():
        try:
            with contextlib.ExitStack() as stack:
                peer = make(stack, python, core)
                pairs = [(ours(device, source, target), peer.ask(python)) for _ in range(rounds)]
        except Missing as missing:
            print(f"{name} is skipped: {missing}", file=sys.stderr)
            continue
        for metric in METRICS:
            mine, theirs = (statistics.median(pair[n][metric] for pair in pairs) for n in (0, 1))
            found.append(_figure(name, metric, mine, theirs))
    return found


def _figure(name: str, metric: str, mine: float, theirs: float) -> report.Figure:
    """A ratio above 1 is in our favour."""
    ratio = theirs / mine if metric == "call_us" else mine / theirs
    unit = "µs" if metric == "call_us" else "GB/s"
    return report.Figure(f"{name}_{metric}", mine, unit, f"{name}, {unit}", theirs, ratio=ratio)


def main() -> None:
    """Measure and print all figures."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=report.PEERS_PYTHON, help="interpreter with the peers")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with workspace("peers") as (stack, folder):
        host = Host(stack, folder, cores[0])
        device = stack.enter_context(Lane.open(from_elsewhere(host.session(guarantee_pct=0))))
        os.sched_setaffinity(0, {cores[-1]})
        figures = measure(device, options.python, cores[0], options.rounds)
        os.sched_setaffinity(0, cores)
    report.show("remote_gpu.peers", figures, as_json=options.json)


if __name__ == "__main__":
    main()
