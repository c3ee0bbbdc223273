"""A job end to end: scheduler, host, lease, session, operations and a graph, checked by numpy."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.measure import median_s
from benchmarks.report import Figure
from remote_gpu.client import Device, Graph, OpCode, OpFailed, connect
from tools.gpu_check.part import Answer, Part, Target
from tools.gpu_check.system import session, system

PART = Part(
    title="Scheduler, host and lease: a session with operations and a graph, checked by numpy",
    order=30,
    limit_s=60,
    modules=("numpy", "msgspec", "aiohttp", "click", "rich", "cryptography"),
)
_MEMORY_MIB = 512
#: NIST SP 800-38A, F.2.1: CBC-AES128, the first block.
_KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
_VECTOR = bytes(range(16))
_PLAIN = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
_CIPHER = bytes.fromhex("7649abac8119b246cee98e9b12e9197d")
_SOURCE = """
__kernel void scale(__global float *y, __global const float *x, float factor)
{
    int i = get_global_id(0);
    y[i] = factor * x[i];
}
"""


def run(target: Target) -> Answer:
    with system(target) as host:
        began_s = time.perf_counter()
        with session(host, target, _MEMORY_MIB, 50) as lease, connect(lease.environment()) as found:
            device = found[0]
            device.op("noop")
            ready_s = time.perf_counter() - began_s
            names = [check(device) for check in (_arrays, _product, _cipher, _busy)]
            names.append(_graph(device, target.kind))
            round_trip_s = median_s(lambda: device.op("noop"), 20 if target.quick else 1000)
            info = device.info
        lease.close()
    return Answer(
        [
            Figure(metric="checks", value=len(names), unit="checks"),
            Figure(metric="lease_to_first_call_ms", value=1e3 * ready_s, unit="ms"),
            Figure(metric="noop_us", value=1e6 * round_trip_s, unit="µs"),
        ],
        [f"Device of the lease: {info.model} (kind {info.kind}).", *names],
    )


def _arrays(device: Device) -> str:
    values = np.linspace(-3, 3, 10_000, dtype=np.float32)
    shapes = [[values.size]]
    mapped = device.op("map", values, function="exp", dtype="float32", shapes=shapes)
    got = np.frombuffer(mapped.buffers[0], np.float32)
    np.testing.assert_allclose(got, np.exp(values), rtol=1e-5)
    reduced = device.op("reduce", values, function="maximum", dtype="float32", shapes=shapes)
    assert np.frombuffer(reduced.buffers[0], np.float32)[0] == values.max(), "reduce"
    return f"`map` and `reduce` by {mapped.implementation}."


def _product(device: Device) -> str:
    n = 256
    a, b = (np.random.default_rng(seed).standard_normal((n, n), np.float32) for seed in (1, 2))
    result = device.op("sgemm", a, b, m=n, n=n, k=n)
    got = np.frombuffer(result.buffers[0], np.float32).reshape(n, n)
    np.testing.assert_allclose(got, a @ b, rtol=1e-3, atol=1e-3)
    return f"`sgemm` by {result.implementation}."


def _cipher(device: Device) -> str:
    result = device.op("aes_cbc", _KEY, _VECTOR, _PLAIN, direction="encrypt")
    assert bytes(result.buffers[0]) == _CIPHER, "the first block of NIST's example"
    return f"`aes_cbc` by {result.implementation}."


def _busy(device: Device) -> str:
    result = device.op("burn", ms=20)
    assert result.values["ms"] >= 20, result.values
    return f"`burn` by {result.implementation}."


def _graph(device: Device, kind: str) -> str:
    n = 1024
    graph = Graph(_SOURCE)
    x = graph.inout("x", 4 * n)
    graph.launch("scale", (n,), (64,), x, x, 2.0)
    try:
        result = device.run(graph, iterations=10, x=np.ones(n, np.float32))
    except OpFailed as error:
        if error.code != OpCode.ENOTSUP or kind != "cpu":  # a host's CPU needs no compiler
            raise
        return f"No graph: {error.message}."
    assert (np.frombuffer(result.outputs["x"], np.float32) == 1024).all(), "2 to the power of 10"
    return f"A graph by {result.implementation}."
