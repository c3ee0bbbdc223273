"""From upload to result for protein queries of growing length, beside `blastp` on the same machine.

    python -m benchmarks.remote_gpu.search_curve [--json] [--database FASTA] [--runs N] [--plot SVG]

The shape of the paper's Figures 5 and 6 (one query of 2 … 10,000 residues against a database, with
and without a remote device), with what this machine has: the whole way of a job through the local
system (queue, scheduler, staging, function, device of the kind `cpu`, result), and NCBI's `blastp`
by itself, with one thread and with the paper's six, or as many as there are cores. Nothing here is
a GPU, and the two do not compute the same: ours is the exact Smith-Waterman score of every subject,
blastp a heuristic search. What the curve shows is the price of the way, `way_ms`, which does not
grow with the work.

Default database: Debian's `mmseqs2-examples` (20,000 proteins) if it is installed, else 20,000
seeded random proteins.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from benchmarks.pictures import Curve, Picture, draw
from benchmarks.report import ROOT, Figure, arguments, compared, show
from benchmarks.system import System, local_system
from contract.keys import job_id, result_key
from operations.alignment.fasta import parse_fasta
from operations.alignment.scoring import ALPHABET

EXAMPLE = ROOT / "fdl/examples/sequence-search"
DEBIAN = Path("/usr/share/doc/mmseqs2/example-data/DB.fasta.gz")
LENGTHS = (2, 100, 500, 1000, 5000, 10000)
THREADS = 6  #: of the paper's Figure 6
NAME = "sequence-search"
LOOK_EVERY_S = 0.005
JOB_LIMIT_S = 280.0  #: the function's own limit is 300 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Seconds of one job."""

    whole_s: float  #: the upload begun → the result seen
    code_s: float  #: the user's code, in which the device computes


def database(folder: Path) -> Path:
    """The default database, unpacked."""
    path = folder / "database.fasta"
    if DEBIAN.exists():
        path.write_bytes(gzip.decompress(DEBIAN.read_bytes()))
        return path
    stream, letters = random.Random(1), ALPHABET[:20]
    with path.open("w") as file:
        for number in range(20_000):
            file.write(f">p{number}\n{''.join(stream.choices(letters, k=350))}\n")
    return path


def queries(path: Path) -> dict[int, bytes]:
    """One query per length, cut from the database's proteins joined in their order."""
    joined = bytearray()
    for protein in parse_fasta(path.read_bytes(), file=path.name):
        joined += protein.residues
        if len(joined) > max(LENGTHS):
            break
    return {n: b">q%d\n%s\n" % (n, bytes(joined[:n])) for n in LENGTHS}


def deploy(system: System) -> None:
    """The example's definition with the measured database."""
    folder = system.home / NAME
    shutil.copytree(EXAMPLE, folder)
    definition = yaml.safe_load((folder / "fdl.yaml").read_text())
    entry = definition["functions"]["aws"][0]
    entry["lambda"]["container"]["environment"]["Variables"]["DATABASE"] = "measured"
    entry["gpu"]["memory"] = 1024
    (folder / "fdl.yaml").write_text(yaml.safe_dump(definition))
    system.orchgpu("deploy", str(folder / "fdl.yaml"))


def run(system: System, key: str, fasta: bytes) -> Way:
    """One job. Raises RuntimeError when it fails or does not end."""
    s3 = system.client("s3")
    begun = time.monotonic()
    made = s3.put_object(Bucket=f"{NAME}-in", Key=key, Body=fasta)
    result = result_key(job_id(f"{NAME}-in", key, made["VersionId"], NAME))
    while time.monotonic() - begun < JOB_LIMIT_S:
        found = s3.list_objects_v2(Bucket=f"{NAME}-intermediate", Prefix=result)
        if found["KeyCount"]:
            whole_s = time.monotonic() - begun
            body = s3.get_object(Bucket=f"{NAME}-intermediate", Key=result)["Body"].read()
            answer = json.loads(body)
            if answer["state"] != "SUCCEEDED":
                raise RuntimeError(f"{key}: {answer['state']} {answer['detail']}")
            times = answer["times"]
            return Way(whole_s=whole_s, code_s=times["EEnd"] - times["EStart"])
        time.sleep(LOOK_EVERY_S)
    raise RuntimeError(f"{key}: no result after {JOB_LIMIT_S:g} s")


def ours(path: Path, asked: dict[int, bytes], runs: int) -> dict[int, Way]:
    """Medians per length, after one job to warm up."""
    with local_system("--data", f"measured={path}") as system:
        deploy(system)
        run(system, "queries/warm.fasta", asked[2])
        found = {
            length: [run(system, f"queries/{length}-{n}.fasta", fasta) for n in range(runs)]
            for length, fasta in asked.items()
        }
    return {
        length: Way(
            whole_s=median(way.whole_s for way in ways), code_s=median(way.code_s for way in ways)
        )
        for length, ways in found.items()
    }


def blastp(path: Path, asked: dict[int, bytes], runs: int, threads: int) -> dict[int, float]:
    """Seconds of the other program, after making its database."""
    index = path.with_suffix(".blast")
    make = ["makeblastdb", "-in", str(path), "-dbtype", "prot", "-out", str(index)]
    subprocess.run(make, check=True, capture_output=True)
    command = ["blastp", "-db", str(index), "-num_threads", str(threads), "-outfmt", "6"]
    found: dict[int, float] = {}
    for length, fasta in asked.items():
        times = []
        for _ in range(runs):
            begun = time.monotonic()
            subprocess.run(command, input=fasta, check=True, capture_output=True)
            times.append(time.monotonic() - begun)
        found[length] = median(times)
    return found


def figures(ways: dict[int, Way], theirs: dict[str, dict[int, float]]) -> list[Figure]:
    """Per length: the whole job, the job without the user's code, the other program."""
    found: list[Figure] = []
    for length, way in ways.items():
        found.append(Figure(f"whole_s_{length}", way.whole_s, "s"))
        found.append(Figure(f"way_ms_{length}", 1e3 * (way.whole_s - way.code_s), "ms"))
        found += [
            compared(
                f"{name.replace(' ', '_')}_s_{length}",
                times[length],
                "s",
                "ours, upload to result",
                way.whole_s,
            )
            for name, times in theirs.items()
        ]
    return found


def picture(name: str, ways: dict[int, Way], theirs: dict[str, dict[int, float]]) -> Picture:
    """Seconds over residues, on logarithmic axes as the paper's figures."""
    named = {
        "orchgpu, upload to result": {n: way.whole_s for n, way in ways.items()},
        "orchgpu, the way alone": {n: way.whole_s - way.code_s for n, way in ways.items()},
        **theirs,
    }
    return Picture(
        name=name,
        title="From upload to result, by length of the query",
        x="residues",
        y="s",
        curves=[Curve(name=one, points=tuple(points.items())) for one, points in named.items()],
        logarithmic_x=True,
        logarithmic_y=True,
    )


def main() -> None:
    """Measure, print, draw."""
    parser = arguments(__doc__)
    parser.add_argument("--database", type=Path, help="FASTA of proteins, unpacked")
    parser.add_argument("--runs", type=int, default=4, help="of each length (the paper: 4)")
    parser.add_argument("--plot", type=Path, help="write the curves there, as SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.database or database(Path(folder))
        asked = queries(path)
        ways = ours(path.resolve(), asked, options.runs)
        theirs: dict[str, dict[int, float]] = {}
        if shutil.which("blastp"):
            local = Path(folder, "measured.fasta")
            shutil.copyfile(path, local)
            for threads in sorted({1, min(THREADS, len(os.sched_getaffinity(0)))}):
                name = f"blastp {threads} thread{'s' if threads > 1 else ''}"
                theirs[name] = blastp(local, asked, options.runs, threads)
    if options.plot:
        draw(picture(options.plot.stem, ways, theirs), options.plot.parent)
    show("remote_gpu.search_curve", figures(ways, theirs), as_json=options.json)


if __name__ == "__main__":
    main()
