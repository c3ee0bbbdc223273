"""Seconds until the next step of a workflow has read a model: from the sandbox's folder, or S3.

In the shape of KNIX's section 7.5 (a model of 550 MB, in the file system that functions of one
sandbox share, against a volume outside of it): two steps, of which the first makes the file and the
second reads it. With `sandbox: shared` it lies in `RUN_DIR`; without, it is an output of the first
step and the input of the second, through the embedded cloud's S3.

    shared_s, apart_s     from the end of writing to the end of reading, median
    shared_gain_pct       what the shared sandbox saves of it

`python -m benchmarks.model_reads [--json] [--runs N] [--mib SIZE]`. Both run on one machine: the
network that a real bucket has in between is missing, so the gain is a lower bound.
"""

from __future__ import annotations

import json
import statistics

from benchmarks.report import Figure, arguments, show
from benchmarks.system import System, local_system
from benchmarks.workflows import content, until

SCRIPTS = {
    "make": """#!/bin/sh
set -e
head -c "$(cat "$INPUT_FILE_PATH")" /dev/zero > "$TMP_OUTPUT_DIR/model"
{ echo; date +%s.%N; } >> "$TMP_OUTPUT_DIR/model"
""",
    "read": """#!/bin/sh
set -e
cat "$INPUT_FILE_PATH" > /dev/null
{ tail -n 1 "$INPUT_FILE_PATH"; date +%s.%N; } > "$TMP_OUTPUT_DIR/times"
""",
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--mib", type=int, default=525, help="of the model; VGG19 has 550 MB")
    options = parser.parse_args()
    with local_system() as system:
        shared_s = _seconds(system, "shared", options.runs, options.mib)
        apart_s = _seconds(system, "apart", options.runs, options.mib)
    figures = [
        Figure("shared_s", shared_s, "s"),
        Figure("apart_s", apart_s, "s"),
        Figure("shared_gain_pct", 100 * (1 - shared_s / apart_s), "%"),
    ]
    show("model_reads", figures, as_json=options.json)


def _seconds(system: System, sandbox: str, runs: int, mib: int) -> float:
    """From written to read, median of some runs after one that warms up."""
    _deploy(system, sandbox)
    s3, found = system.client("s3"), []
    for number in range(runs + 1):
        s3.put_object(Bucket=sandbox, Key=f"in/{number}", Body=str(mib << 20).encode())
        times = until(lambda: content(s3, sandbox, "out/times"))
        s3.delete_object(Bucket=sandbox, Key="out/times")
        written_s, read_s = (float(line) for line in times.split())
        found.append(read_s - written_s)
    return statistics.median(found[1:])


def _deploy(system: System, sandbox: str) -> None:
    """The same two steps, in one sandbox or each in its own."""
    folder = system.home / sandbox
    folder.mkdir()
    names = {step: f"{step}-{sandbox}" for step in SCRIPTS}
    paths = {"make": ("in", "model"), "read": ("model", "out")}
    functions = []
    for step, script in SCRIPTS.items():
        (folder / f"{step}.sh").write_text(script)
        source, output = (f"{sandbox}/{path}" for path in paths[step])
        entry = {
            "name": names[step],
            "init_script": f"{step}.sh",
            "memory": 1024,
            "ephemeral_storage": 4096,
            "timeout": 120,
            "input": [{"path": source, "each": True} if step == "read" else {"path": source}],
            "output": [{"path": output}],
        }
        functions.append({"lambda": entry})
    workflow: dict[str, object] = {"steps": list(names.values())}
    if sandbox == "shared":
        workflow["sandbox"] = "shared"
    document = {"functions": {"aws": functions}, "workflows": {f"models-{sandbox}": workflow}}
    (folder / "fdl.yaml").write_text(json.dumps(document))  # YAML as well
    system.orchgpu("deploy", str(folder / "fdl.yaml"))


if __name__ == "__main__":
    main()
