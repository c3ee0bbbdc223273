"""Object keys and derived ids.

Layout of a function's intermediate bucket (below an optional prefix of the user's):

    staging/<function>/<job_id>/<n>.<fence>.zip    envelope of attempt n (or .tar.gz); its creation
                                                   starts Lambda
    attempts/<job_id>/<n>/report.json              why attempt n failed (written by the runner)
    attempts/<job_id>/<n>/claim.json               the one start of attempt n, without a device
    attempts/<job_id>/<n>/progress.json            how far its code is
    attempts/<job_id>/checkpoint.tar               the folder that the next attempt continues from
    attempts/<job_id>/<n>/before.json              a foreign function's object before the run
    results/<job_id>.json                          the one terminal record of a job
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_STAGING = re.compile(
    r"staging/(?P<function>[^/]+)/(?P<job>[^/]+)/(?P<n>\d+)\.(?P<fence>\d+)\.(?P<form>zip|tar\.gz)"
)
_ATTEMPT = re.compile(r"attempts/(?P<job>[^/]+)/(?P<n>\d+)/(?P<what>claim|report)\.json")
#: Metadata of each output object: the job that wrote it.
OUTPUT_JOB = "orchgpu-job"

#: The form of a job's id, as `job_id` makes it.
JOB_ID = re.compile("j[0-9a-f]{25}")
_RESULT = re.compile(r"results/(?P<job>[^/]+)\.json")


def job_id(bucket: str, key: str, version: str, function: str) -> str:
    """The id of a job: 26 characters, equal for every event about the same object version.

    `version` is the S3 versionId, else etag + LastModified of one HEAD. No sequencers.
    """
    text = "\0".join((bucket, key, version, function))
    return "j" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:25]


def staging_key(function: str, job: str, n: int, fence: int, form: str = "zip") -> str:
    """The key of an envelope packed as `form`: `zip` or `tar.gz`."""
    return f"staging/{function}/{job}/{n}.{fence}.{form}"


def report_key(job: str, n: int) -> str:
    return f"attempts/{job}/{n}/report.json"


def claim_key(job: str, n: int) -> str:
    return f"attempts/{job}/{n}/claim.json"


def before_key(job: str, n: int) -> str:
    return f"attempts/{job}/{n}/before.json"


def progress_key(job: str, n: int) -> str:
    return f"attempts/{job}/{n}/progress.json"


def checkpoint_key(job: str) -> str:
    return f"attempts/{job}/checkpoint.tar"


def result_key(job: str) -> str:
    return f"results/{job}.json"


class StagingKey(NamedTuple):
    """The parts of a staging key."""

    function: str
    job: str
    n: int
    fence: int
    form: str = "zip"  #: or tar.gz


def parse_staging_key(key: str) -> StagingKey | None:
    """The inverse of `staging_key`, or None for any other key."""
    match = _STAGING.fullmatch(key)
    if match is None:
        return None
    return StagingKey(
        match["function"], match["job"], int(match["n"]), int(match["fence"]), match["form"]
    )


def parse_attempt_key(key: str) -> tuple[str, int, str] | None:
    """Job id, attempt, and `claim` or `report`; None for any other key."""
    match = _ATTEMPT.fullmatch(key)
    return None if match is None else (match["job"], int(match["n"]), match["what"])


def parse_result_key(key: str) -> str | None:
    """The job id of a result key, or None for any other key."""
    match = _RESULT.fullmatch(key)
    return match["job"] if match else None
