"""The result, the one terminal record of a job, and the report of one failed attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.record import VERSION, JsonObject, Record

#: A log tail longer than this is cut at its start; records stay small enough to read at once.
LOG_TAIL_BYTES_MAX = 8192
#: Of the document that the user's code wrote, as JSON without spaces.
DOCUMENT_BYTES_MAX = 64 * 1024
#: Begins the detail of an attempt whose session no gateway opened; the code and its text follow.
CLAIM_FAILED = "the lease could not be claimed: "
#: The same, when a gateway refused the secret of the lease.
SECRET_REFUSED = f"{CLAIM_FAILED}DENIED"


@dataclass(frozen=True)
class OutputFile:
    """One object in an output bucket."""

    bucket: str
    key: str
    size: int  #: bytes
    sha256: str
    version: str | None = None  #: None on an unversioned bucket, or where it is not known
    etag: str = ""  #: without quotes; "" = not known


@dataclass(frozen=True)
class Result(Record):
    """Written once with If-None-Match (a redriven job: If-Match on the failed one)."""

    job_id: str
    state: str  #: a terminal JobState
    reason: str
    attempt: int
    nonce: str  #: of the session that committed it; "" when the orchestrator wrote it
    exit_code: int | None
    files: list[JsonObject]  #: OutputFile as dicts
    #: Wall clock: invoked, claimed, EStart, EEnd, given_back, committed.
    times: dict[str, float]
    log_tail: str
    device: JsonObject = field(default_factory=dict)  #: host, kind, model of the first share
    detail: str = ""  #: one sentence for people
    ended_at_s: float = 0.0  #: wall clock
    notes: list[str] = field(default_factory=list)  #: unexpected facts about a success
    provenance: JsonObject = field(default_factory=dict)  #: see `contract.provenance`
    cost_usd: float | None = None  #: of all its attempts; None = not counted
    #: That the user's code wrote to RESULT_FILE; None = it wrote none.
    document: JsonObject | None = None
    version: int = VERSION


@dataclass(frozen=True)
class Report(Record):
    """The failure of one attempt, as seen inside the function."""

    job_id: str
    attempt: int
    nonce: str
    reason: str
    exit_code: int | None
    detail: str
    log_tail: str
    times: dict[str, float]
    #: Of NOT_ON_HOST: `{"data": [names], "programs": [names]}` that the host does not have.
    lacks: JsonObject = field(default_factory=dict)
    provenance: JsonObject = field(default_factory=dict)  #: as of a result
    version: int = VERSION
