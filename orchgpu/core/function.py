"""One deployed function as the orchestrator sees it: the registry record that `deploy` writes.

Stored as JSON (`corekit.decode`) at `functions/<name>.json` in the state bucket.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import Value, field
from gpu_scheduler.floors import Loads, WarmFloor
from gpu_scheduler.model import Advance, LeaseLifetime, Request
from gpu_scheduler.promises import Slo, StepTimes
from orchgpu.core.notify import Target as Notified
from orchgpu.core.prices import Prices


class Output(Value):
    """A destination of output files; empty filters match all (OR in a list, AND between lists)."""

    bucket: str
    prefix: str = ""  #: without a trailing slash
    name_prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()


class BatchPlace(Value):
    """The part of AWS Batch that runs a function without a device of ours (ADR 62)."""

    queue: str
    definition: str  #: the user's job definition, which asks for the card
    #: The longest time for a start that Batch's state does not explain: a run that waits in its
    #: queue has it again.
    start_s: float = 3600.0


class HostRun(Value):
    """The run of a function on the first host of its lease, in AWS Batch, or by a service."""

    package_bucket: str
    package_key: str
    process: Mapping[str, str] = field(default_factory=dict)  #: the runner's environment
    role: str = ""  #: ARN of the role whose temporary credentials it gets
    log_group: str = ""
    storage_mib: int = 512  #: of Lambda's /tmp, where `auto` may run it
    programs: tuple[str, ...] = ()  #: that its host must have
    network: bool = False
    image: str = ""  #: OCI image by digest; "" = the script of the package
    command: tuple[str, ...] = ()
    warm: bool = False  #: its process may stay for the next job
    call_s: float = 0.0  #: it is an endpoint, whose calls take this long at most; 0 = it is none
    batch: BatchPlace | None = None  #: in place of a host
    service: str = ""  #: URL of the HTTP service in place of Lambda; "" = none (ADR 64)
    calls_max: int = 1  #: side by side; 1 also in a record of an older version


class Function(Value):
    """The settings by which the orchestrator serves one function."""

    name: str
    revision: str  #: hash of the plan that made it; a change makes orchestrators reload it
    queue_url: str  #: job queue
    dead_letter_url: str
    completion_url: str  #: result events and Lambda's failure records
    input_bucket: str
    input_prefix: str = ""  #: without a trailing slash
    input_suffixes: tuple[str, ...] = ()
    intermediate_bucket: str
    outputs: tuple[Output, ...] = ()
    request: Request = field(default_factory=Request)  #: for 0 devices: its jobs need none
    middleware: str = "builtin"
    timeout_s: float = 300.0  #: of a run, as declared; Lambda's own is longer by `advance_s`
    #: The longest wait of a run for a device that is not free yet; 0 = none, and a record of an
    #: older version.
    advance_s: float = 0.0
    attempts_max: int = 3
    #: Without a device: `fail`, `cpu` (request again, for any cpu), `requeue` (wait again).
    on_unavailable: str = "fail"
    #: `zip` and `tar.gz`: a small input travels inside; `reference`: a zip that never contains it.
    envelope: str = "zip"
    #: `invoke`: the orchestrator starts the function, and the envelope's event again; `event`:
    #: only the event does.
    start: str = "invoke"
    #: `completion: object`: the bucket and the pattern of the key that ends a job (below);
    #: "" = our runner commits results.
    object_bucket: str = ""
    object_key: str = ""
    #: Jobs in hand in one orchestrator; None = no limit, without a device the budget's.
    concurrency_max: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  #: the user's, for the script
    image: str | None = None  #: container image, for people; None = zip function
    package_sha256: str = ""  #: of the package; "" = none
    memory_mib: int = 0  #: of the function; 0 = not known: the record of an older version
    #: The objectives of each job: it is promised, or refused, before its first attempt.
    slo: Slo | None = None
    max_cost_usd: float | None = None  #: of one job, over all its attempts
    #: Stated times by model or kind of device, or `*`; empty = the learned ones count.
    times: Mapping[str, StepTimes] = field(default_factory=dict)
    #: Stated time of a job outside of its lease and its waiting, until it is learned.
    way_s: float | None = None
    #: Wall clock of the store: an upload before the first deploy with this input starts no job.
    #: 0 = deployed by a version that did not note it; the reconciler leaves such functions out.
    deployed_at_s: float = 0.0
    #: Accounts that must own the buckets; a record of an older version names none.
    owners: Mapping[str, str] = field(default_factory=dict)
    notify: tuple[Notified, ...] = ()  #: notified of the end of each job
    execution: str = "lambda"  #: lambda, host, or auto: each attempt where it fits
    host: HostRun | None = None  #: of `host` and `auto`
    warm_min: int = 0  #: workers that hosts keep loaded
    warm_loads: Loads = ()  #: what they load

    @property
    def floor(self) -> WarmFloor | None:
        """The workers that hosts keep loaded; None = none. Raises INVALID where none can stay."""
        if not self.warm_min:
            return None
        return WarmFloor(request=self.request, workers_min=self.warm_min, loads=self.warm_loads)

    @property
    def hold(self) -> LeaseLifetime:
        """The condition that keeps a lease: our runner's session; for foreign code a time limit."""
        return LeaseLifetime.DEADLINE if self.object_bucket else LeaseLifetime.SESSION

    @property
    def with_device(self) -> bool:
        return self.request.count > 0

    @property
    def advance(self) -> Advance | None:
        """The terms on which its jobs take a device ahead; None = none waits for it."""
        if self.advance_s <= 0 or self.object_bucket or self.request.count != 1:
            return None
        late_pct = Prices().late_pct(self.memory_mib, self.request.count)
        return None if late_pct is None else Advance(wait_s=self.advance_s, late_pct=late_pct)

    def in_hand_max(self, without_device: int) -> int | None:
        """The number of jobs that an orchestrator may have in hand; None = no limit but devices.

        `without_device`: the budget's limit, where nothing else limits the jobs.
        """
        if self.with_device or self.concurrency_max is not None:
            return self.concurrency_max
        return without_device

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The queues and buckets of the function's jobs; a job keeps them until it ends."""
        return (
            self.queue_url,
            self.dead_letter_url,
            self.completion_url,
            self.input_bucket,
            self.intermediate_bucket,
            self.object_bucket,
            self.object_key,
        )

    def takes_from(self, bucket: str, key: str) -> bool:
        folder = f"{self.input_prefix}/" if self.input_prefix else ""
        return bucket == self.input_bucket and key.startswith(folder)

    @property
    def invoked(self) -> bool:
        """Whether the orchestrator starts it. Foreign code opens no session, so two starts run."""
        return self.start == "invoke" and not self.object_bucket

    @property
    def inline(self) -> bool:
        """True: a small input travels inside the envelope."""
        return self.envelope != "reference"

    def envelope_form(self, place: str = "lambda") -> str:
        """The format of envelopes, and the suffix of their keys: `zip` or `tar.gz`.

        Of an attempt of `auto` on a host the other one, of which S3 notifies no Lambda function.
        """
        forms = ("tar.gz", "zip") if self.envelope == "tar.gz" else ("zip", "tar.gz")
        return forms[self.execution == "auto" and place == "host"]


# ---------------------------------------------------------------------- `completion: object`

# The one key whose change ends a job of a foreign function. Such a function runs code that commits
# no result (a plain SCAR supervisor, a handler of the user), so the orchestrator reads one exact
# key instead: its etag and time are noted before the envelope is staged, and others mean that the
# function has written it. That is weaker than a result: a failure is known only by Lambda's record
# or by the end of the lease, other outputs are unknown, and two jobs with the same key cannot be
# distinguished (write `{job}` into the key).

#: The placeholders of a key; the same as in `fdl.keys.jobs`.
WORDS = ("{job}", "{key}", "{name}", "{stem}")


class Target(Value):
    """One exact object."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def target_key(template: str, *, job: str, key: str, prefix: str) -> str:
    """The key of one job: `{key}` is the input's key below its prefix, `{name}` the last part,
    `{stem}` the name without its last suffix, `{job}` the job's id."""
    below = key.removeprefix(prefix + "/") if prefix else key
    name = below.rsplit("/", 1)[-1]
    stem = name.rpartition(".")[0] or name
    for word, value in zip(WORDS, (job, below, name, stem), strict=True):
        before, found, after = template.partition(word)
        if found:
            # split first: a value may look like a placeholder itself
            parts = {"job": job, "key": key, "prefix": prefix}
            return target_key(before, **parts) + value + target_key(after, **parts)
    return template
