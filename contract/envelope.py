"""The envelope: a zip or tar.gz with `job.json`, `env.json` and, for small inputs, `input/<name>`.

    job.json   Job (below)
    env.json   absent for an attempt without a device, which is claimed by an object (claim.py)
               {"middleware": "builtin", "connection": {...}, "variables": {"NAME": "value"}}

`connection` is what `remote_gpu.client` opens the session with; `variables` is what the
middleware's unmodified client needs, filtered by its allow-list on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.record import VERSION, JsonObject, Record

JOB_NAME = "job.json"
ENV_NAME = "env.json"
INPUT_FOLDER = "input/"


@dataclass(frozen=True)
class Job(Record):
    """The attempt that a runner is started for."""

    job_id: str
    attempt: int  #: n, from 1
    fence: int  #: of its lease; 0 = it has none
    function: str
    input_bucket: str
    input_key: str
    input_version: str | None  #: versionId to pin a referenced read; None on unversioned buckets
    input_etag: str
    input_size: int  #: bytes
    input_inline: bool  #: True: the archive holds it; False: it is read from its bucket, pinned
    event: JsonObject  #: the S3 event with this one record, for the script's EVENT variable
    outputs: list[JsonObject]  #: [{"bucket", "prefix", "suffix": [], "filter": []}], FDL order
    intermediate_bucket: str
    staged_at_s: float  #: wall clock; with connect_by_s it makes a late delivery known
    connect_by_s: float  #: seconds after staged_at_s by which the session must be open
    replace_etag: str | None = None  #: redriven job: etag of the failed result to replace
    variables: dict[str, str] | None = None  #: the user's own variables from the FDL
    #: W3C trace context of the function's span; None = no trace is recorded.
    traceparent: str | None = None
    provenance: JsonObject | None = None  #: of the result, as far as the orchestrator knows it
    #: Of a step of a run: {"id", "workflow", "step", "feeder", "lists_files"}. `feeder` wrote the
    #: one input ("" = the input of the run); `lists_files`: the input is a list (`contract.run`).
    run: JsonObject | None = None
    #: Of a job whose cost is counted: {"paid_usd", "usd_per_s", "since_s"}: what earlier attempts
    #: cost, the price of a second of this one, the wall clock since which it is paid; "cap_usd", if
    #: it has a cap; "waiting_usd_per_s", if its device is not free yet: the price until then.
    cost: JsonObject | None = None
    #: Of the input, of a step the run's: what the user's code sees of it (`contract.parameters`).
    metadata: JsonObject | None = None
    version: int = VERSION
