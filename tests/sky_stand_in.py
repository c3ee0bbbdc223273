"""A stand-in of SkyPilot's program: `python sky_stand_in.py FOLDER ARGUMENT…`.

Its forms are those of SkyPilot 0.14: what `sky status`, `sky api status`, `launch`, `down` and
`api cancel` take and print. Orders are asynchronous, as there: a launch is a request first, then a
cluster in INIT, then UP, one step at each look; an ended cluster stays for a look. A warning comes
before the JSON. `FOLDER/refusing` lets every launch fail.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any

State = dict[str, Any]


def main(folder: Path, arguments: list[str]) -> int:
    with (folder / "sky.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "sky.json"
        state = json.loads(file.read_text()) if file.exists() else {"requests": [], "clusters": {}}
        status = _do(state, folder, arguments)
        file.write_text(json.dumps(state))
    return status


def _do(state: State, folder: Path, arguments: list[str]) -> int:
    match arguments:
        case ["status", "--output", "json"]:
            _step(state, refusing=(folder / "refusing").exists())
            clusters = [{"name": name, **one} for name, one in state["clusters"].items()]
            _print(clusters)
        case ["api", "status", "--all", "--verbose", "--limit", _, "--output", "json"]:
            _print([{"entrypoint": "", **one} for one in reversed(state["requests"])])
        case ["launch", "--yes", "--async", "--down", "--cluster", name, "--env", env, task]:
            assert env == f"ORCHGPU_HOST={name}"
            assert Path(task).is_file()
            _request(state, "launch", name)
        case ["down", "--yes", "--async", name]:
            if name not in state["clusters"]:
                sys.stdout.write(f"Cluster(s) not found: {name}.\n")
                return 0
            _request(state, "down", name)
        case ["api", "cancel", "--yes", request_id]:
            for one in state["requests"]:
                if one["request_id"] == request_id and one["status"] in ("PENDING", "RUNNING"):
                    one["status"] = "CANCELLED"
        case _:
            sys.stderr.write(f"Error: No such option: {arguments}\n")
            return 2
    return 0


def _request(state: State, name: str, cluster: str) -> None:
    made = {"request_id": f"r{len(state['requests'])}", "name": name, "cluster_name": cluster}
    state["requests"].append({**made, "status": "PENDING", "created_at": time.time()})


def _step(state: State, *, refusing: bool) -> None:
    clusters = state["clusters"]
    for one in state["requests"]:
        name, key = one["cluster_name"], (one["name"], one["status"])
        if key == ("launch", "PENDING") and refusing:
            one["status"] = "FAILED"
        elif key == ("launch", "PENDING"):
            one["status"] = "RUNNING"
            now = int(time.time())
            clusters[name] = {"status": "INIT", "init_kind": "launching", "launched_at": now}
        elif key == ("launch", "RUNNING"):
            one["status"] = "SUCCEEDED"
            clusters[name].update(status="UP", init_kind=None)
        elif key == ("down", "PENDING"):
            one["status"] = "RUNNING"
        elif key == ("down", "RUNNING"):
            one["status"] = "SUCCEEDED"
            clusters.pop(name, None)


def _print(found: list[State]) -> None:
    warning = 'A warning (["allowed_clouds"]) of the client.'
    sys.stdout.write(f"{warning}\n{json.dumps(found, indent=2)}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
