"""Runs of workflows: their ids, and the keys of the objects that are their whole truth.

Layout in the bucket of the workflow (the intermediate bucket of its first step):

    runs/<run>/run.json             the frozen workflow and the input of the run
    runs/<run>/inputs/<step>.json   the files that a step's one job takes (a gather)
    runs/<run>/started/<n>/<step>.json  the jobs of a step were sent, after the n-th retry
    runs/<run>/cancel.json          {"at_s"}: a user wants it to end
    runs/<run>/retries/<n>.json     {"at_s", "from"}: a user wants its failed steps to run again
    runs/<run>/result.json          the one terminal record of a run, until a retry replaces it

Each is written once (If-None-Match), so that any orchestrator continues after any death, and
nothing is locked. A cancel that is older than the newest retry does not count: a new one
replaces it. The first retry is n = 1; its `at_s` is not before the end of the run that it repeats.
The results of a step's jobs lie with those of all jobs (`contract.keys`).

The list of files at `inputs/<step>.json`, which the runner reads too:

    {"version": 1, "run", "workflow", "step", "retry": n,
     "files": [{"step", "bucket", "key", "version", "etag", "size", "name"}]}

`step` wrote the file; `name` is its path below the folder of that step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

RUN_ID = re.compile("r[0-9a-f]{25}")
_STARTED = re.compile(r"runs/[^/]+/started/(?P<n>\d+)/(?P<step>[^/]+)\.json")
_RETRY = re.compile(r"runs/[^/]+/retries/(?P<n>\d+)\.json")
#: Files that one step may get, in a gather or as parts.
FILES_MAX = 1000


def run_id(bucket: str, key: str, version: str, workflow: str) -> str:
    """The id of a run: 26 characters, equal for every event about the same object version."""
    return "r" + _digest(bucket, key, version, workflow)[:25]


def step_jobs(run: str, step: str) -> str:
    """The first 13 characters of the ids of a step's jobs: one LIST finds their results."""
    return "j" + _digest(run, step)[:12]


def step_job_id(run: str, step: str, part: str = "") -> str:
    """The id of a step's job: as long as any job's, equal however often the step is started.

    `part` names the file of a step that has a job for each (`each: true`): bucket, key and
    version, as `part_of` writes them; "" for the one job of a step.
    """
    return step_jobs(run, step) + _digest(run, step, part)[:13]


def part_of(bucket: str, key: str, version: str) -> str:
    """One object version as the part of a step; `version` is its etag where it has none."""
    return "\0".join((bucket, key, version))


def run_prefix(run: str) -> str:
    """Below it lies all that is stored of a run but the results of its jobs."""
    return f"runs/{run}/"


def run_key(run: str) -> str:
    return f"runs/{run}/run.json"


def inputs_key(run: str, step: str) -> str:
    return f"runs/{run}/inputs/{step}.json"


def started_key(run: str, n: int, step: str) -> str:
    return f"runs/{run}/started/{n}/{step}.json"


def started_steps(keys: Iterable[str]) -> frozenset[tuple[int, str]]:
    """The steps whose jobs were sent, with the number of retries before, among a run's keys."""
    matches = map(_STARTED.fullmatch, keys)
    return frozenset((int(match["n"]), match["step"]) for match in matches if match)


def cancel_key(run: str) -> str:
    return f"runs/{run}/cancel.json"


def retry_key(run: str, n: int) -> str:
    return f"runs/{run}/retries/{n}.json"


def retry_numbers(keys: Iterable[str]) -> list[int]:
    """The numbers of a run's retries among its keys, the first one first."""
    return sorted(int(match["n"]) for match in map(_RETRY.fullmatch, keys) if match)


def run_result_key(run: str) -> str:
    return f"runs/{run}/result.json"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
