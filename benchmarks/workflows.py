"""The time that a workflow costs: between two steps, and for a fan-out into many parts.

`hop_ms_p50`: from the result of a step to the start of the next one's function, in a chain of steps
without a device whose script does nothing. `hop_cpu_ms`: the orchestrator's processor time for
each step of such a chain, the begin and the end of the run included. `step_own_ms_p50`: a step's
time in the orchestrator from message to finished job, without calls to the cloud, pauses and the
function's time (`own_ms` of its log). `step_ms_p50`: from script to
script; beside it the same chain where S3's own notification starts each function (`job: none`, as
in SCAR). `fanout_N_s`: one run that cuts its input into N parts, a job for each, and gathers them;
beside it N uploads to a function of the same script. Everything runs on this machine, in a local
system of its own.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from benchmarks import report
from benchmarks.system import System, local_system
from contract.keys import result_key
from contract.run import run_id, run_result_key, step_job_id

T = TypeVar("T")
LOOK_EVERY_S = 0.1
GIVE_UP_S = 600.0
#: Adds the time of its start to what it got.
STAMP = """#!/bin/sh
{ cat "$INPUT_FILE_PATH"; date +%s.%N; } > "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH")"
"""
CUT = """#!/bin/sh
for n in $(seq 1 "$(cat "$INPUT_FILE_PATH")"); do echo $n > "$TMP_OUTPUT_DIR/$n"; done
"""
COPY = '#!/bin/sh\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"\n'
COUNT = '#!/bin/sh\nls "$TMP_INPUT_DIR/part" | wc -l > "$TMP_OUTPUT_DIR/count"\n'
SCRIPTS = {"stamp": STAMP, "cut": CUT, "copy": COPY, "count": COUNT}


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    parser.add_argument("--chains", type=int, default=10, help="chains of each kind")
    parser.add_argument("--steps", type=int, default=5, help="of a chain")
    parser.add_argument("--parts", type=int, default=1000, help="of the fan-out")
    parser.add_argument("--only", choices=("chains", "fan-out"), help="one of the two parts")
    options = parser.parse_args()
    figures: list[report.Figure] = []
    with local_system() as system:
        if options.only != "fan-out":
            _deploy(system, _chain_files(options.steps))
            figures += _chains(system, options.chains, options.steps)
        if options.only != "chains":
            _deploy(system, _fanout_files())
            figures.append(_fanout(system, options.parts))
    report.show("workflows", figures, as_json=options.json)


# ---------------------------------------------------------------------- what is measured


def _deploy(system: System, files: Mapping[str, dict[str, Any]]) -> None:
    folder = system.home / "benchmark"
    folder.mkdir(exist_ok=True)
    for name, text in SCRIPTS.items():
        (folder / f"{name}.sh").write_text(text)
    for name, document in files.items():
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps(document))  # YAML as well
        system.orchgpu("deploy", str(file))


def _chain_files(steps: int) -> Mapping[str, dict[str, Any]]:
    ours = [_entry(f"own{n}", "stamp", f"own/{n}", f"own/{n + 1}") for n in range(steps)]
    bare = [
        _entry(f"bare{n}", "stamp", f"bare/{n}", f"bare/{n + 1}") | {"job": "none"}
        for n in range(steps)
    ]
    return {"own": _document(ours, workflow="own"), "bare": _document(bare)}


def _fanout_files() -> Mapping[str, dict[str, Any]]:
    parts = [
        _entry("cut", "cut", "fan/in", "fan/parts"),
        _entry("part", "copy", {"path": "fan/parts", "each": True}, "fan/copies"),
        _entry("count", "count", "fan/copies", "fan/out"),
    ]
    alone = [_entry("alone", "copy", "alone/in", "alone/out")]
    return {"fan": _document(parts, workflow="fan"), "alone": _document(alone)}


def _document(functions: Sequence[dict[str, Any]], workflow: str = "") -> dict[str, Any]:
    """A file of functions; with a workflow of that name, they are its steps."""
    steps = [one["lambda"]["name"] for one in functions]
    workflows = {"workflows": {workflow: {"steps": steps}}} if workflow else {}
    return {"functions": {"aws": functions}, **workflows}


def _entry(name: str, script: str, source: str | dict[str, Any], output: str) -> dict[str, Any]:
    return {
        "lambda": {
            "name": name,
            "init_script": f"{script}.sh",
            "timeout": 60,
            "input": [{"path": source} if isinstance(source, str) else source],
            "output": [{"path": output}],
        }
    }


def _chains(system: System, chains: int, steps: int) -> list[report.Figure]:
    """Chains in turns; the first of each kind warms up."""
    hops_s: list[float] = []
    own_s: list[float] = []
    bare_s: list[float] = []
    cpu_s: list[float] = []
    own_ms: list[float] = []
    for number in range(chains + 1):
        before_s, mark = system.orchestrator_cpu_s(), system.orchestrator_log.stat().st_size
        hops, starts = _own_chain(system, f"{number}", steps)
        chain_cpu_s = system.orchestrator_cpu_s() - before_s
        bare = _bare_chain(system, f"{number}", steps)
        if number:
            hops_s += hops
            cpu_s.append(chain_cpu_s / steps)
            own_ms += system.own_times_ms(mark)
            own_s += starts
            bare_s += bare
    return [
        report.Figure("hop_ms_p50", statistics.median(hops_s) * 1000, "ms"),
        report.Figure("hop_cpu_ms", statistics.fmean(cpu_s) * 1000, "ms"),
        report.Figure("step_own_ms_p50", statistics.median(own_ms), "ms", target="<= 10"),
        report.compared(
            "step_ms_p50",
            statistics.median(own_s) * 1000,
            "ms",
            "S3's notification instead, ms",
            statistics.median(bare_s) * 1000,
        ),
    ]


def _own_chain(system: System, key: str, steps: int) -> tuple[list[float], list[float]]:
    """Times from result to start, and from script to script."""
    s3 = system.client("s3")
    made = s3.put_object(Bucket="own", Key=f"0/{key}", Body=b"")
    run = run_id("own", f"0/{key}", made["VersionId"], "own")
    _ended(system, "own0-intermediate", run)
    times = []
    for n in range(steps):
        name = f"own{n}"
        body = content(s3, f"{name}-intermediate", result_key(step_job_id(run, name)))
        times.append(json.loads(body or b"")["times"])
    hops = [after["invoked"] - before["committed"] for before, after in pairwise(times)]
    return hops, _stamps(content(s3, "own", f"{steps}/{key}"))


def _bare_chain(system: System, key: str, steps: int) -> list[float]:
    s3 = system.client("s3")
    s3.put_object(Bucket="bare", Key=f"0/{key}", Body=b"")
    return _stamps(until(lambda: content(s3, "bare", f"{steps}/{key}")))


def _stamps(body: bytes | None) -> list[float]:
    times = [float(line) for line in (body or b"").split()]
    return [after - before for before, after in pairwise(times)]


def _fanout(system: System, parts: int) -> report.Figure:
    s3 = system.client("s3")
    began_s = time.time()
    made = s3.put_object(Bucket="fan", Key="in/parts", Body=str(parts).encode())
    run = run_id("fan", "in/parts", made["VersionId"], "fan")
    result = _ended(system, "cut-intermediate", run)
    (file,) = result["files"]
    count = int(content(s3, file["bucket"], file["key"]) or b"0")
    if count != parts:
        raise RuntimeError(f"{count} of {parts} parts arrived")
    ours_s = result["ended_at_s"] - began_s
    alone_s = _uploads_s(system, parts)
    return report.compared(
        f"fanout_{parts}_s", ours_s, "s", "as many uploads of one function, s", alone_s
    )


def _uploads_s(system: System, count: int) -> float:
    s3, began_s = system.client("s3"), time.time()
    for n in range(count):
        s3.put_object(Bucket="alone", Key=f"in/{n}", Body=b"1\n")

    def all_there() -> bool | None:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket="alone", Prefix="out/")
        return sum(page["KeyCount"] for page in pages) == count or None

    until(all_there)
    return time.time() - began_s


# ---------------------------------------------------------------------- waiting


def _ended(system: System, bucket: str, run: str) -> dict[str, Any]:
    s3 = system.client("s3")
    body = until(lambda: content(s3, bucket, run_result_key(run)))
    result: dict[str, Any] = json.loads(body)
    if result["state"] != "SUCCEEDED":
        raise RuntimeError(f"{run}: {result['state']} {result['reason']} {result['detail']}")
    return result


def until(look: Callable[[], T | None]) -> T:
    """The first answer that is not None."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_s:
        found = look()
        if found is not None:
            return found
        time.sleep(LOOK_EVERY_S)
    raise TimeoutError(f"nothing came within {GIVE_UP_S:g} s")


def content(s3: Any, bucket: str, key: str) -> bytes | None:
    """The content of an object that may not be there yet."""
    try:
        found: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.NoSuchKey:
        return None
    return found


if __name__ == "__main__":
    main()
