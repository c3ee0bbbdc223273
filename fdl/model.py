"""The declarations of a file, frozen: SCAR's functions with our blocks `gpu:` and `job:`.

Sizes in MiB, times in seconds. Paths of scripts and folders are as written, relative to the file's
directory. `locations` maps the path of a key (`functions.aws[0].lambda.memory`) to its location.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from contract.secrets.reference import SecretReference
from corekit.errors import AppError, invalid
from corekit.units import MemorySize
from fdl.beside_device import DeclaredData, Endpoint, Host
from fdl.notified import Notified
from fdl.role import Iam
from fdl.scheduled import Scheduled
from fdl.served import Http, Service
from fdl.text.nodes import Location, Source, as_written, parent
from gpu_scheduler.model import Request
from gpu_scheduler.promises import Slo, StepTimes
from gpu_scheduler.request_options import REQUEST_OPTIONS

#: The zip runtime used where a file names none, or one that AWS has retired.
DEFAULT_RUNTIME = "python3.12"
#: Runtimes with which AWS creates no functions any more (Lambda's runtime deprecation table).
RETIRED_RUNTIMES = ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9")
#: Lambda's limits of one function.
LAMBDA_MEMORY_MIB_MIN, LAMBDA_MEMORY_MIB_MAX, LAMBDA_TIMEOUT_S_MAX = 128, 10240, 900
#: Lambda's limits of /tmp; the least is the default.
STORAGE_MIB_MIN, STORAGE_MIB_MAX = 512, 10240
#: Of a file's own tags: AWS takes 50 of a resource, and a value of 256 characters.
TAGS_MAX, TAG_NAMES_CHARACTERS_MAX = 40, 256
#: Placeholders of storage paths (`fdl.plan.placeholders`).
ACCOUNT, REGION = "{account}", "{region}"
_STEM_CHARACTERS_MAX = 22
#: An envelope is read within minutes of its staging; a day leaves time to examine a failure.
STAGED_DAYS = 1
#: Results and reports are for people; a result must outlive every late copy of its event.
RESULT_DAYS, RESULT_DAYS_MIN = 90, 30
#: SQS's longest retention: a job must not expire while no orchestrator runs.
RETENTION_S = 14 * 86400.0
#: Storage paths and filters of one file: S3 takes 100 rules for a bucket, one for each, and lint
#: compares every pair of them.
FILTERS_MAX = 500
#: The middleware of a request that names none.
BUILTIN = "builtin"
#: Fields of a request → the words of a file for them.
_WORDS = {option.field: option.key for option in REQUEST_OPTIONS if option.field != option.key} | {
    "memory_pct": "memory in percent",
    "compute_guarantee_pct": "the guarantee of compute",
    "compute_limit_pct": "the limit of compute",
}
_FIELD = re.compile(rf"\b({'|'.join(_WORDS)})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path in S3 as SCAR writes it: `bucket[/prefix…]`."""

    bucket: str
    prefix: str = ""  #: without slashes at either end

    def __str__(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    @property
    def key_prefix(self) -> str:
        """The prefix of every key below: `""` or `prefix/`."""
        return f"{self.prefix}/" if self.prefix else ""


#: Ways of an upload's event to the queue of jobs.
VIAS = ("s3", "eventbridge", "sns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One entry of `input` or `output`."""

    path: Path
    storage_provider: str = "s3"  #: `<type>` or `<type>.<id>`
    suffixes: tuple[str, ...] = ()  #: OR inside a list, AND between the two; empty = all
    prefixes: tuple[str, ...] = ()  #: output only: of the path relative to TMP_OUTPUT_DIR
    owner: str | None = None  #: account of the bucket; None = the account of the deploy
    kms_key: str | None = None  #: ARN of the key of its objects; None = as the bucket shows
    each: bool = False  #: of a workflow's step: a job for each file, instead of one for all
    when: str = ""  #: of a workflow's step: a condition on each result that writes there
    via: str = "s3"  #: input only: how events of its uploads reach the queue, one of `VIAS`


@dataclass(frozen=True, slots=True, kw_only=True)
class Intermediate:
    """The bucket of envelopes and results."""

    path: Path
    storage_provider: str = "s3"
    expire_days: int = STAGED_DAYS
    results_days: int = RESULT_DAYS  #: of results and reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The image of a function and the variables of the user's script."""

    image: str | None = None
    image_file: str | None = None
    create_image: bool | None = None
    alpine: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    timeout_threshold_s: int = 10  #: kept back at the end for uploads


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The upload of a package that is too large to send directly."""

    bucket: str | None = None
    max_payload_size: int = 52428800  #: bytes, AWS's limit of a direct upload
    max_s3_payload_size: int = 262144000  #: bytes, AWS's limit unzipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Vpc:
    """Raw `VpcConfig`: the network in which private GPU hosts are reached."""

    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """`LoggingConfig`: form and place of a function's log."""

    format: str = "Text"
    level: str | None = None  #: with JSON only
    system_level: str | None = None  #: with JSON only
    group: str | None = None  #: None = /aws/lambda/<name>


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """One raw entry of `FileSystemConfigs` (EFS)."""

    arn: str
    local_mount_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The `gpu:` block: the request of each job of the function to the scheduler."""

    request: Request = field(default_factory=Request)
    on_unavailable: str = "fail"  #: fail, cpu or requeue
    max_cost_usd: float | None = None  #: of one job, over all its attempts
    slo: Slo | None = None
    times: Mapping[str, StepTimes] = field(default_factory=dict)  #: by model, kind or `*`
    warm_min: int = 0  #: workers that hosts keep loaded
    #: What they load, by operation: its arguments; empty = as the workload's last worker.
    warm_loads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def loads(self) -> tuple[tuple[str, str], ...]:
        """`warm_loads` as the scheduler has it: operations, each with its arguments as JSON."""
        return tuple((name, json.dumps(dict(args))) for name, args in self.warm_loads.items())

    @property
    def middleware(self) -> str:
        """The remote-GPU software between function and device."""
        return self.request.middleware or BUILTIN

    @property
    def memory(self) -> MemorySize:
        """Of each device."""
        return MemorySize(self.request.memory_mib, self.request.memory_pct)


@contextmanager
def words_of_a_file() -> Iterator[None]:
    """An INVALID request inside is raised with the names that its fields have in a file."""
    try:
        yield
    except AppError as error:
        raise invalid(_FIELD.sub(lambda name: _WORDS[name[0]], error.message)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Names of the queues; None = derived from the function's name."""

    name: str | None = None
    dead_letter: str | None = None
    completion: str | None = None
    retention_s: float = RETENTION_S  #: of jobs and dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The `job:` block: the jobs that input becomes."""

    input: tuple[Storage, ...] = ()
    intermediate: Intermediate | None = None
    queue: Queue = field(default_factory=Queue)
    attempts_max: int = 3
    concurrency_max: int | None = None  #: None = no limit
    completion: str = "result"  #: result, or object for code that commits no result
    object: Path | None = None  #: with `completion: object`: the one key, with words in braces
    envelope: str = "zip"  #: zip, tar.gz or reference
    start: str | None = None  #: invoke or event; None = invoke, if our runner runs the code
    advance_s: float | None = None  #: longest wait for a device that is not free yet; None = auto
    checkpoint_s: float | None = None  #: between two saves of CHECKPOINT_DIR; None = there is none
    way_s: float | None = None  #: outside of its lease and its waiting; None = as learned
    jobs: bool = True  #: False: `job: none`, objects start the function by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Lambda:
    """The `lambda:` block, with SCAR's keys."""

    name: str
    memory_mib: int = 512
    timeout_s: int = 300
    runtime: str = DEFAULT_RUNTIME
    architectures: tuple[str, ...] = ("x86_64",)
    description: str = ""
    region: str | None = None
    boto_profile: str | None = None
    execution_mode: str = "lambda"
    log_level: str = "INFO"
    layers: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)  #: of the Lambda process
    init_script: str | None = None
    handler: str | None = None  #: `module.function`, called instead of a script
    container: Container = field(default_factory=Container)
    input: tuple[Storage, ...] = ()
    output: tuple[Storage, ...] = ()
    deployment: Deployment = field(default_factory=Deployment)
    extra_payload: str | None = None
    vpc: Vpc = field(default_factory=Vpc)
    file_system: tuple[FileSystem, ...] = ()
    supervisor: Mapping[str, str] = field(default_factory=dict)
    asynchronous: bool = False
    invocation_type: str | None = None
    log_type: str | None = None
    preheat: bool = False
    ephemeral_storage_mib: int = STORAGE_MIB_MIN
    reserved_concurrency: int | None = None  #: None = the account's common limit
    kms_key: str | None = None  #: ARN of the key of the variables; None = AWS's own
    logging: Logging = field(default_factory=Logging)
    tracing: str = "PassThrough"
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One element of `functions.aws`."""

    function: Lambda
    execution: str = "lambda"  #: lambda, host, or auto: each attempt where it fits
    host: Host = field(default_factory=Host)
    endpoint: Endpoint | None = None  #: None = it takes no calls
    http: Http | None = None  #: None = it has no URL
    service: Service | None = None  #: runs it in place of Lambda; None = there is none
    iam: Iam = field(default_factory=Iam)
    gpu: Gpu | None = None
    job: Job | None = None
    ecr: Mapping[str, object] = field(default_factory=dict)
    cloudwatch: Mapping[str, object] = field(default_factory=dict)
    s3: Mapping[str, object] = field(default_factory=dict)
    #: Variable of the script → the place of its value, which is read when a run starts.
    secrets: Mapping[str, SecretReference] = field(default_factory=dict)
    data: Mapping[str, DeclaredData] = field(default_factory=dict)  #: near its device, by name
    notify: tuple[Notified, ...] = ()  #: notified of the end of each job
    schedule: tuple[Scheduled, ...] = ()  #: times at which an object is put into the input
    group: str | None = None  #: steps of one group share a sandbox, a device and a job
    steps: tuple[Function, ...] = ()  #: of a group (`fdl.plan.groups`), in order
    workflow: str = ""  #: that has it, or its group, as a step; "" = none
    runs_place: Path | None = None  #: of a deployed step: the bucket of its workflow's runs
    run_notify: tuple[Notified, ...] = ()  #: of a deployed step: notified of the ends of its runs
    path: str = ""  #: `functions.aws[0]`

    @property
    def in_lambda(self) -> bool:
        """Whether it has a Lambda function."""
        return self.execution != "host" and self.service is None

    @property
    def on_host(self) -> bool:
        """Whether the host of a device may run it."""
        return self.execution != "lambda"

    @property
    def in_batch(self) -> bool:
        """Whether AWS Batch runs it."""
        return self.on_host and self.host.batch is not None

    @property
    def foreign(self) -> bool:
        """True: our runner does not run its code, and a change of one object ends a job."""
        return self.job is not None and self.job.completion == "object"

    @property
    def module(self) -> str | None:
        """The file of the handler's module, in the folder of the definition."""
        handler = self.function.handler
        return handler.rpartition(".")[0].replace(".", "/") + ".py" if handler else None

    @property
    def runs(self) -> str | None:
        """The file with the code of a run: the script, or the handler's module."""
        return self.function.init_script or self.module

    @property
    def secrets_of_steps(self) -> Mapping[str, Mapping[str, SecretReference]]:
        """Step → its secrets; the only step of a function has the name ""."""
        steps = {step.name: step.secrets for step in self.steps} or {"": self.secrets}
        return {name: secrets for name, secrets in steps.items() if secrets}

    @property
    def references(self) -> tuple[SecretReference, ...]:
        """The secrets of all steps, each once, in the order of the file."""
        steps = self.secrets_of_steps.values()
        return tuple(dict.fromkeys(one for secrets in steps for one in secrets.values()))

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def image(self) -> str | None:
        """The image in which the script is meant to run, as the file names it."""
        container = self.function.container
        return container.image or container.image_file

    @property
    def log_group(self) -> str:
        """The log group of the function in CloudWatch."""
        usual = self.host.log_group if self.on_host else ""
        return self.function.logging.group or usual or f"/aws/lambda/{self.name}"

    @property
    def queued(self) -> bool:
        """True: its input becomes jobs. False: objects start it by themselves.

        That is `job: none`, or what jobs cannot be and a file of SCAR's may have: several inputs or
        none, or an image that runs its own command.
        """
        if self.job is not None:
            return self.job.jobs
        inputs = len(self.function.input)
        one_or_step = inputs == 1 or bool(inputs and self.workflow)
        able = one_or_step and bool(self.runs or self.steps or self.host.image)
        return self.gpu is not None or able

    @property
    def user_input(self) -> tuple[Storage, ...]:
        """The storage to which users upload: `job.input`, else SCAR's `input`."""
        return self.job.input if self.job is not None and self.job.input else self.function.input

    @property
    def storages(self) -> Iterator[tuple[str, Storage]]:
        """Each input and output with the path of its key."""
        lists = (
            ("lambda.input", self.function.input),
            ("lambda.output", self.function.output),
            ("job.input", self.job.input if self.job is not None else ()),
        )
        for name, storages in lists:
            for index, storage in enumerate(storages):
                yield f"{self.path}.{name}[{index}]", storage

    @property
    def intermediate(self) -> Path:
        """The bucket of envelopes and results: declared, or `<name>-intermediate`, with
        placeholders where the input has `{account}`."""
        if self.job is not None and self.job.intermediate is not None:
            return self.job.intermediate.path
        if self.job is not None and self.job.input and self.function.input:
            return self.function.input[0].path  # SCAR's trigger, as in the file of its paper
        stem = self.name.lower().replace("_", "-")[:50].strip("-") or "function"
        if any(ACCOUNT in storage.path.bucket for storage in self.user_input):
            return Path(bucket=f"{_short(stem)}-intermediate-{ACCOUNT}-{REGION}")
        return Path(bucket=f"{stem}-intermediate")

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Names of the queues that it has: without jobs that of dead letters alone."""
        return self.queues if self.queued else (self.queues[1],)

    @property
    def queues(self) -> tuple[str, str, str]:
        """Names of the job queue, the dead-letter queue and the completion queue."""
        declared = self.job.queue if self.job is not None else Queue()
        return (
            declared.name or f"{self.name}-jobs",
            declared.dead_letter or f"{self.name}-dlq",
            declared.completion or f"{self.name}-done",
        )


def _short(stem: str) -> str:
    """A stem that leaves room for an account and a region in the 63 characters of a bucket."""
    if len(stem) <= _STEM_CHARACTERS_MAX:
        return stem
    digest = hashlib.sha256(stem.encode()).hexdigest()[:6]
    return f"{stem[: _STEM_CHARACTERS_MAX - 7].strip('-')}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """One element of `workflows`: functions whose jobs about one input are one run."""

    name: str = ""
    steps: tuple[str, ...]  #: names of functions or groups, as written
    deadline_s: float | None = None  #: a run ends by then after its input was stored
    max_cost_usd: float | None = None  #: of one run, over all its jobs
    slo: Slo | None = None
    sandbox: str = "own"  #: of each step; "shared": all steps are one group of this name
    gpu: Gpu | None = None  #: of a shared sandbox, beside the requests of its steps
    notify: tuple[Notified, ...] = ()  #: notified of the end of each run
    path: str = ""  #: `workflows.NAME`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A part of the file that is read as something else."""

    path: str
    at: Location
    message: str  #: the replacement, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """The `functions:` block."""

    aws: tuple[Function, ...] = ()

    def __post_init__(self) -> None:
        places = [storage for function in self.aws for _, storage in function.storages]
        filters = sum(max(1, len(one.suffixes), len(one.prefixes)) for one in places)
        if filters > FILTERS_MAX:
            raise invalid(
                f"{filters} paths and filters, more than the {FILTERS_MAX} of one file; write"
                " several files"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole file."""

    functions: Functions
    workflows: tuple[Workflow, ...] = ()
    sandboxes: tuple[Workflow, ...] = ()  #: workflows whose steps are a group, and no run
    scar: object = None
    source: Source = field(default_factory=lambda: Source(name="", text=""))
    locations: Mapping[str, Location] = field(default_factory=dict)
    rewrites: tuple[Rewrite, ...] = ()
    #: Path of a key → its path in the file, where a rewrite moved it.
    origins: Mapping[str, str] = field(default_factory=dict)
    #: Keys without effect, each with the reason.
    ignored: tuple[tuple[str, str], ...] = ()

    def location(self, path: str) -> Location:
        """The location of a key, or of its nearest ancestor."""
        while path:
            if path in self.locations:
                return self.locations[path]
            path = parent(path)
        return Location(1, 1)

    def written(self, path: str) -> str:
        """The path of a key as the file has it; of one that it lacks, the block's around it."""
        while path and path not in self.locations:
            path = parent(path)
        return as_written(path, self.origins)
