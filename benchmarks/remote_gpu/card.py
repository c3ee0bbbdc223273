"""Own kernels, libraries and copies on one device, beside a limit measured in the same run.

    search_gcups         sequence search: 10^9 cells (query × subject residues) a second
    search_scores_equal  the share of scores that equal pyopal's
    sgemm_ratio_N        a product of N×N with its copies / the same product of resident matrices
    kernel_sgemm_ratio_N the kernel that serves cards without cuBLAS / cuBLAS, both resident
    upload_ratio         copies to the device / copies within the host's memory
    download_ratio       copies from it
    aes_ratio            CBC decryption with its copies / OpenSSL on one core of the host

Rates are the best of some repeats, by elapsed time: the device is ours alone. Nothing crosses a
network; `benchmarks.remote_gpu.operations` measures the way to the device.

    python -m benchmarks.remote_gpu.card [--kind cpu|opencl|cuda] [--device ID] [--json]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np

from benchmarks import report
from benchmarks.measure import times_s
from benchmarks.report import Figure
from operations.alignment import scan, scoring
from operations.alignment.database import Database
from operations.alignment.fasta import Protein
from operations.matrix.cublas import Cublas
from operations.matrix.product import BLOCKED, TILED, Method
from operations.plugins.aes_cbc import KernelCbc, OpensslCbc
from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

REPEATS = 3
#: Of proteins in UniProtKB/Swiss-Prot, about.
RESIDUES = 360
QUERY_RESIDUES = 512
#: 5 % of CUDASW++4.0's on an H100 (Schmidt et al., BMC Bioinformatics 2024).
SEARCH_TARGET_GCUPS = 0.05 * 5700


class Sizes:
    """The sizes of a run: a card would be idle with a host's, and a host busy for hours."""

    def __init__(self, kind: str) -> None:
        card = kind == "cuda"
        self.proteins = 100_000 if card else 2_000
        self.sides = (1024, 4096, 8192) if card else (256, 512)
        self.copy_bytes = (256 if card else 32) << 20
        self.cipher_bytes = (256 if card else 4) << 20


def best_s(work: Callable[[], object]) -> float:
    """Elapsed seconds of the fastest of some repeats, after one to warm up."""
    return min(times_s(work, 1 + REPEATS)[1:])


def search(backend: Backend, sizes: Sizes, kind: str) -> list[Figure]:
    stream = random.Random(1)
    letters = scoring.ALPHABET[:20].encode()

    def residues(length: int) -> bytes:
        return bytes(stream.choices(letters, k=length))

    lengths = [max(20, round(stream.expovariate(1 / RESIDUES))) for _ in range(sizes.proteins)]
    subjects = [residues(length) for length in lengths]
    query = residues(QUERY_RESIDUES)
    encoded = scoring.encode(query)
    packed = scan.pack([scoring.encode(one) for one in subjects])
    scanner = scan.Scanner(backend, Quota(), packed, vectors=backend.on_host and kind == "cpu")
    cells = QUERY_RESIDUES * sum(lengths)
    took_s = best_s(lambda: scanner.scores(encoded))
    compared = subjects[:2000]
    database = Database(
        tuple(Protein(name=str(n), residues=one) for n, one in enumerate(compared)), sha256=""
    )
    ours, theirs = scanner.scores(encoded)[: len(compared)], database.scores(query)
    library_cells = QUERY_RESIDUES * sum(map(len, compared))
    library_gcups = library_cells / best_s(lambda: database.scores(query)) / 1e9
    scanner.close()
    gcups = cells / took_s / 1e9
    on_card = kind == "cuda"
    return [
        report.compared(
            "search_gcups",
            gcups,
            "10^9 cells/s",
            "pyopal on one core",
            library_gcups,
            target=f">= {SEARCH_TARGET_GCUPS:g}" if on_card else None,
        ),
        Figure(
            "search_scores_equal",
            float((ours == theirs).mean()),
            f"of {len(compared)}",
            target="== 1",
        ),
    ]


def products(backend: Backend, sizes: Sizes, kind: str) -> list[Figure]:
    figures = []
    for side in sizes.sides:
        rng = np.random.default_rng(side)
        a, b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
        operations = 2.0 * side**3
        vendor: Method = Cublas() if kind == "cuda" else BLOCKED
        bare = Resident(backend, vendor, side, a, b)
        whole_s = best_s(bare.with_copies)
        resident_s = best_s(bare.compute)
        bare.close()
        own = Resident(backend, TILED, side, a, b)
        own_s = best_s(own.compute)
        own.close()
        rate = operations / resident_s / 1e9
        figures += [
            Figure(
                f"sgemm_ratio_{side}",
                resident_s / whole_s,
                f"of {rate:.0f} GFLOP/s",
                f"{vendor.name}, resident matrices, s",
                resident_s,
            ),
            Figure(
                f"kernel_sgemm_ratio_{side}",
                resident_s / own_s,
                "ratio",
                f"{vendor.name}, resident matrices, s",
                resident_s,
            ),
        ]
    return figures


class Resident:
    """One product of square matrices on a device."""

    def __init__(
        self,
        backend: Backend,
        method: Method,
        side: int,
        a: np.ndarray[tuple[int, int], np.dtype[np.float32]],
        b: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    ) -> None:
        self._backend = backend
        quota = Quota()
        self._memories = [backend.allocate(quota, 4 * side * side) for _ in range(3)]
        self._inputs = [one.data.cast("B") for one in (a, b)]
        self._launch = method.prepare(backend, quota)(self._memories, (side, side, side))
        self.with_copies()

    def with_copies(self) -> None:
        for memory, data in zip(self._memories, self._inputs, strict=False):
            memory.write(data)
        self.compute()
        self._memories[2].read()

    def compute(self) -> None:
        self._launch()
        self._backend.finish()

    def close(self) -> None:
        for memory in self._memories:
            memory.close()


def copies(backend: Backend, sizes: Sizes) -> list[Figure]:
    """Nothing where host and device share their memory: payloads are received into it."""
    size = sizes.copy_bytes
    memory = backend.allocate(Quota(), size)
    if memory.view is not None:
        memory.close()
        return []
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    host_s = best_s(lambda: np.copyto(target, source))
    data = source.data

    def upload() -> None:
        memory.write(data)
        backend.finish()

    took_s = {"upload": best_s(upload), "download": best_s(memory.read)}
    memory.close()
    return [
        Figure(
            f"{way}_ratio",
            host_s / seconds,
            f"of {size / host_s / 2**20:.0f} MiB/s",
            "a copy within the host's memory, s",
            host_s,
        )
        for way, seconds in took_s.items()
    ]


def ciphers(context: Context, sizes: Sizes) -> list[Figure]:
    data = np.random.default_rng(1).bytes(sizes.cipher_bytes)
    inputs = [memoryview(bytes(range(32))), memoryview(bytes(16)), memoryview(data)]
    args = {"direction": "decrypt"}
    library_s = best_s(lambda: OpensslCbc().run(Context(), args, inputs))
    kernel_s = best_s(lambda: KernelCbc().run(context, args, inputs))
    return [
        Figure(
            "aes_ratio",
            library_s / kernel_s,
            f"of {len(data) / library_s / 2**20:.0f} MiB/s",
            "OpenSSL on one core, s",
            library_s,
        )
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--kind", choices=("cpu", "opencl", "cuda"), default="cpu")
    parser.add_argument("--device", default="", help="its id; default: the first of its kind")
    options = parser.parse_args()
    context = Context(kind=options.kind, device=options.device)
    try:
        backend = context.open_backend()
    except OpFailed as error:
        sys.exit(f"no device of kind {options.kind}: {error.message}")
    if isinstance(backend, HostBackend):
        sys.exit("no OpenCL driver for this machine's CPU: nothing to measure")
    sizes = Sizes(options.kind)
    figures = [
        *search(backend, sizes, options.kind),
        *products(backend, sizes, options.kind),
        *copies(backend, sizes),
        *ciphers(context, sizes),
    ]
    report.show("remote_gpu.card", figures, as_json=options.json)


if __name__ == "__main__":
    main()
