"""Deployed functions, inputs, results and queues, as commands use them; any provider's cloud."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeVar

from contract.claim import Claim
from contract.http_jobs import DIGEST, suffix_fault
from contract.keys import claim_key, progress_key, report_key, result_key
from contract.parameters import ENDPOINT, SET
from contract.progress import Progress
from contract.result import Report, Result
from corekit.aio.newer import known
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.suggest import did_you_mean
from corekit.values import Value
from fdl.plan.resources import (
    FunctionUrl,
    Ledger,
    Notification,
    QueueResource,
    Record,
    WorkflowRecord,
)
from orchgpu.cloud_services import Address, CloudServices, Entry, Head, Identity
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.files import check_file
from orchgpu.jobs.provider import provider
from orchgpu.jobs.uploaded import (
    SOURCE,
    Submitted,
    TakesInputs,
    input_key,
    origin_of,
    source_hash,
    submitted_as,
)
from orchgpu.ports import Tolerating


class DirectFunction(Value):
    """A function without jobs, as it is deployed."""

    name: str
    inputs: Sequence[Notification]  #: the rules by which objects start it
    dead_letters: str = ""  #: name of the queue of events that it could not run; "" = it has none

    @property
    def places(self) -> list[str]:
        """Locations whose new objects start it, as `s3://bucket/prefix`."""
        return list(dict.fromkeys(f"s3://{rule.bucket}/{rule.prefix}" for rule in self.inputs))

    def takes(self, file: Path) -> bool:
        """True when a file of that name starts the function."""
        return any(file.name.endswith(rule.suffix) for rule in self.inputs)


logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Pauses before a read is repeated: for 15 minutes after versioning was first enabled on a bucket,
#: S3 may answer 404 for what was just written, now and then.
_FALSE_404_PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)


class JobCloud:
    """The cloud of jobs: their functions, inputs, results and queues. Raises AppError only."""

    def __init__(
        self,
        endpoint_url: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        *,
        connections: int = 4,
        within_s: float | None = None,
    ) -> None:
        """`connections`: concurrent calls, in threads. `within_s` limits each call."""
        self._address = Address(endpoint_url=endpoint_url, region=region, profile=profile)
        self._connections = connections
        self._within_s = within_s

    @cached_property
    def services(self) -> CloudServices:
        connect = provider().connect
        return connect(self._address, connections=self._connections, within_s=self._within_s)

    @property
    def local(self) -> bool:
        return self.services.local

    # ------------------------------------------------------------------ deployed functions

    def function(self, name: str) -> Function:
        """The deployed function. Raises NOT_FOUND, or INVALID for a function without jobs."""
        key = f"functions/{name}.json"
        body = self._found(self.services.state_bucket, key)
        if body is None:
            raise self._not_served(name)
        return self._expecting_owners(_known(Function, body, key))

    def workflow(self, name: str) -> Workflow | None:
        """The deployed workflow; None where there is none of that name."""
        key = f"workflows/{name}.json"
        body = self._found(self.services.state_bucket, key)
        if body is None:
            return None
        workflow = _known(Workflow, body, key)
        self.services.expect_owners(workflow.owners)
        return workflow

    def workflows(self) -> list[Workflow]:
        """Every deployed workflow, by name."""
        found = (self.workflow(name) for name in self._names("workflows/"))
        return [workflow for workflow in found if workflow is not None]

    def function_or_workflow(self, name: str) -> Function | Workflow:
        """The function or workflow of that name. Raises as `function` does."""
        if name not in self.served():
            workflow = self.workflow(name)
            if workflow is not None:
                return workflow
        return self.function(name)

    def functions(self) -> list[Function]:
        """Every deployed function that the orchestrator serves, by name."""
        keys = [f"functions/{name}.json" for name in self.served()]
        bodies = {key: self._found(self.services.state_bucket, key) for key in keys}
        found = [_known(Function, body, key) for key, body in bodies.items() if body is not None]
        return [self._expecting_owners(function) for function in found]

    def _expecting_owners(self, function: Function) -> Function:
        """The function, whose buckets must have the owners of its deploy from now on."""
        if function.owners:
            self.services.expect_owners(function.owners)
        return function

    def ledger(self, name: str) -> Ledger | None:
        """The deploy's notes of a function, served or not; None when it is not deployed."""
        key = f"deployments/{name}.json"
        body = self._found(self.services.state_bucket, key)
        return None if body is None else _known(Ledger, body, key)

    def url_of(self, name: str) -> str:
        """The URL of a function with `http: true` on AWS; "" where none can be read."""
        ledger = self.ledger(name)
        begins = f"{FunctionUrl.kind}/"
        made = [key for key in (() if ledger is None else ledger.created) if key.startswith(begins)]
        with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.DENIED):
            return self.services.function_url(made[0].removeprefix(begins)) if made else ""
        return ""

    def deployed(self) -> list[str]:
        """The name of every deployed function, served or not."""
        return sorted({*self._names("deployments/"), *self.served()})

    def served(self) -> list[str]:
        return self._names("functions/")

    def _names(self, prefix: str) -> list[str]:
        """The functions with an object below this prefix of the state bucket."""
        try:
            listed = [entry.key for entry in self.objects(self.services.state_bucket, prefix)]
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return []  # nothing was ever deployed here
        return [key.removeprefix(prefix).removesuffix(".json") for key in listed]

    def _not_served(self, name: str) -> AppError:
        """INVALID for a function without jobs, else NOT_FOUND."""
        found = self.direct(name)
        if found is None and self.workflow(name) is not None:
            text = f"{name!r} is a workflow, not a function: "
            return invalid(f"{text}`orchgpu jobs --workflow {name}`")
        if found is None:
            others = [other for other in self.deployed() if other != name]
            hint = "; `orchgpu deploy FDL` deploys one"
            if others:
                hint = f"{did_you_mean(name, others)}; deployed are {', '.join(sorted(others))}"
            return AppError(ErrorCode.NOT_FOUND, f"no function {name!r} is deployed here{hint}")
        upload = f"`orchgpu put FILE {name}` uploads to {' or '.join(found.places)}"
        return invalid(
            f"{name!r} has no jobs (`job: none`), so its runs cannot be listed or followed; "
            f"{upload if found.places else 'nothing triggers it'}, and `orchgpu dlq ls {name}` "
            "lists events that it could not run"
        )

    def direct(self, name: str) -> DirectFunction | None:
        """The deployed function of that name without jobs, if there is one."""
        ledger = None if name in self.served() else self.ledger(name)
        kinds = (Record.kind, WorkflowRecord.kind)
        if ledger is None or any(f"{kind}/{name}" in ledger.created for kind in kinds):
            return None  # a workflow, or an interrupted deploy or removal; deploy it again
        if ledger.visits:
            return None  # it has no inputs of its own: it is part of a function with jobs
        queues = [key for key in ledger.created if key.startswith(f"{QueueResource.kind}/")]
        return DirectFunction(
            name=name,
            inputs=self._triggers(ledger),
            dead_letters=queues[0].partition("/")[2] if queues else "",
        )

    def direct_functions(self) -> list[DirectFunction]:
        """All deployed functions without jobs, by name."""
        found = (self.direct(name) for name in self.deployed())
        return [one for one in found if one is not None]

    def _triggers(self, ledger: Ledger) -> Sequence[Notification]:
        created = [key.partition("/") for key in ledger.created]
        names = [name for kind, _, name in created if kind == Notification.kind]
        buckets = dict.fromkeys(name.partition("/")[0] for name in names)
        found = (rule for bucket in buckets for rule in self.services.triggers(bucket))
        return [rule for rule in found if rule.name in names]

    def direct_outputs(self, function: DirectFunction) -> list[tuple[str, str]]:
        """Bucket and prefix of its outputs; none for code that our runner does not run."""
        try:
            variables = self.services.function_settings(function.name).variables
            outputs = json.loads(variables.get("ORCHGPU_OUTPUTS", "[]"))
            return list(dict.fromkeys((str(one["bucket"]), str(one["prefix"])) for one in outputs))
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return []  # the function itself is gone: `doctor` reports it
        except (ValueError, KeyError, TypeError):
            return []  # changed outside of deploys

    # ------------------------------------------------------------------ jobs

    def submit(
        self, function: Function, file: Path, *, now_s: float, parameters: str = ""
    ) -> Submitted:
        """Upload one input; the new object starts the job. Raises INVALID for an unusable file.

        `parameters`: as `contract.parameters.set_text` writes them.
        """
        head = self.upload_input(function, file, parameters)
        return submitted_as(function, file, head, now_s)

    def upload_input(self, to: TakesInputs, file: Path, parameters: str = "") -> Head:
        """Upload one input. Raises INVALID for an unusable file."""
        self.check(to, file)
        bucket, key = to.input_bucket, input_key(to, file)
        version = self.services.upload(file, bucket, key, origin_of(to, file, parameters))
        return _existing(lambda: self.services.head_object(bucket, key, version))

    def submitted_before(
        self, function: Function, file: Path, parameters: str = ""
    ) -> Submitted | None:
        """The job of the same content, uploaded for the function as it is deployed now, if any."""
        head = self.uploaded_before(function, file, parameters)
        if head is None:
            return None
        return submitted_as(function, file, head, head.modified.timestamp())

    def uploaded_before(self, to: TakesInputs, file: Path, parameters: str = "") -> Head | None:
        """The same content, uploaded for the function or workflow as it is deployed now, if any."""
        bucket, key = to.input_bucket, input_key(to, file)
        try:
            head = self.services.head_object(bucket, key)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            if not self._listed(bucket, key):
                return None
            head = _existing(lambda: self.services.head_object(bucket, key))
        return head if head.metadata == origin_of(to, file, parameters) else None

    def submit_once(
        self,
        function: Function,
        file: Path,
        *,
        source: str = "",
        parameters: str = "",
        opens: bool = False,
    ) -> Submitted:
        """Upload an input unless it is there; a repeated call returns the same job.

        `source`: its origin, by which `submitted_from` knows it; `opens`: the job answers calls.
        Raises CONFLICT where an input that differs is there, which stays; INVALID as `submit` does.
        """
        self.check(function, file)
        bucket, key = function.input_bucket, input_key(function, file)
        copied = {SOURCE: source_hash(source)} if source else {}
        origin = {**origin_of(function, file, parameters), **copied}
        origin |= {ENDPOINT: "1"} if opens else {}
        try:
            version = self.services.upload(file, bucket, key, origin, once=True)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            version = None  # of another request, or of this one, whose answer was lost
        head = _existing(lambda: self.services.head_object(bucket, key, version))
        if any(head.metadata.get(name) != origin.get(name) for name in (DIGEST, SET)):
            text = f"s3://{bucket}/{key} has another content or other parameters"
            raise AppError(ErrorCode.CONFLICT, text)
        return submitted_as(function, file, head, head.modified.timestamp())

    def submitted_from(
        self, function: Function, file: PurePath, source: str, parameters: str = ""
    ) -> Submitted | None:
        """The job of an input that exists; None for one that was not made of these."""
        head = self.head(function.input_bucket, input_key(function, file))
        found = (head.metadata.get(SOURCE), head.metadata.get(SET, ""))
        if found != (source_hash(source), parameters):
            return None
        return submitted_as(function, file, head, head.modified.timestamp())

    @staticmethod
    def check(function: TakesInputs, file: Path) -> None:
        """Raise INVALID for an unusable file, or one that the trigger would ignore."""
        check_file(file)
        if fault := suffix_fault(function.name, file.name, function.input_suffixes):
            raise invalid(fault)

    def result(self, function: Function, job: str) -> Result | None:
        """The job's one terminal record; None while there is none."""
        body = self._found(function.intermediate_bucket, result_key(job))
        try:
            return None if body is None else Result.from_json(body)
        except (ValueError, RecursionError) as error:
            raise invalid(f"the result of {job} is not readable: {error}") from error

    def commit(self, function: Function, result: Result, replaced: str | None) -> None:
        """Write a terminal result. Raises CONFLICT when there is one, other than `replaced`.

        `replaced` is the etag of a failure that may be overwritten: the job was run again.
        """
        bucket, key = function.intermediate_bucket, result_key(result.job_id)
        self.services.write_once(bucket, key, result.to_json(), replaces=replaced)

    def close_attempt(self, function: Function, job: str, attempt: int) -> None:
        """Take the claim of an attempt without a device, unless a start has it."""
        bucket, key, now_s = function.intermediate_bucket, claim_key(job, attempt), time.time()
        claim = Claim(job_id=job, attempt=attempt, request="", claimed_at_s=now_s, ends_at_s=now_s)
        try:
            self.services.write_once(bucket, key, claim.to_json(), replaces=None)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise

    def report(self, function: Function, job: str, attempt: int) -> tuple[Report, float] | None:
        """The report of a failed attempt and the time it was stored; None when there is none."""
        bucket, key = function.intermediate_bucket, report_key(job, attempt)
        try:
            body, stored_s = self.services.read_object(bucket, key)
            return Report.from_json(body), stored_s
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        except (ValueError, RecursionError):
            return None  # the job's record describes the attempt as well

    def progress(self, function: Function, job: str, attempt: int) -> Progress | None:
        """The last report of an attempt's code; None when it reported nothing readable."""
        where = function.intermediate_bucket, progress_key(job, attempt)
        with Tolerating(ErrorCode.NOT_FOUND), suppress(ValueError, RecursionError):
            return Progress.from_json(self.services.read_object(*where)[0])
        return None

    # ------------------------------------------------------------------ objects and queues

    def letters(self, function: Function | DirectFunction) -> int:
        """The number of dead letters of a function."""
        if isinstance(function, Function):
            return self.messages(function.dead_letter_url)
        name = function.dead_letters
        return self.messages(self.services.queue_url(name)) if name else 0

    def objects(self, bucket: str, prefix: str) -> Iterator[Entry]:
        """Every object below a prefix, by key. Raises NOT_FOUND for an unknown bucket."""
        return self.services.list_objects(bucket, prefix)

    def head(self, bucket: str, key: str) -> Head:
        """The properties of an object that was listed or written."""
        return _existing(lambda: self.services.head_object(bucket, key))

    def fetch(
        self, bucket: str, key: str, *, etag: str | None = None, part: range | None = None
    ) -> bytes:
        """An object that was listed or written, or a part of it."""
        return _existing(lambda: self.services.read_object(bucket, key, etag=etag, part=part)[0])

    def download(self, bucket: str, key: str, to: Path) -> None:
        """An object that was listed or written, into a file, in pieces.

        Raises INVALID where the file cannot be written.
        """
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            _existing(lambda: self.services.download(bucket, key, to))
        except OSError as error:
            raise invalid(f"cannot write {str(to)!r}: {error.strerror or error}") from error

    def messages(self, queue_url: str) -> int:
        """All messages of a queue: visible, in flight, delayed."""
        return self.services.count_messages(queue_url).all

    def not_received(self, function: Function) -> int:
        """Messages of jobs that no orchestrator has received yet."""
        return self.services.count_messages(function.queue_url).visible

    def identity(self) -> tuple[Identity, float | None]:
        """The caller, and the least time that the cloud's clock is ahead; None: not known."""
        asked_s = time.time()
        identity = self.services.identity()
        return identity, _ahead_s(identity.date, asked_s, time.time())

    def close(self) -> None:
        if "services" in self.__dict__:
            self.services.close()

    def _listed(self, bucket: str, key: str) -> bool:
        """Whether an object exists, by a listing, which is never false."""
        first = next(iter(self.services.list_objects(bucket, key)), None)
        return first is not None and first.key == key

    def _found(self, bucket: str, key: str) -> bytes | None:
        try:
            return self.services.read_object(bucket, key)[0]
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise


def _existing(read: Callable[[], T]) -> T:
    """The value of a read of an object that exists, repeated while S3 answers 404."""
    for pause_s in _FALSE_404_PAUSES_S:
        try:
            return read()
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
        time.sleep(pause_s)
    return read()


def _ahead_s(date: str | None, asked_s: float, answered_s: float) -> float | None:
    """The distance of a date of whole seconds from the interval in which it was written."""
    try:
        began_s = parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
    if began_s is None:
        return None
    if began_s > answered_s:
        return began_s - answered_s
    return min(0.0, began_s + 1.0 - asked_s)


def _known(cls: type[T], body: bytes, key: str) -> T:
    """A stored object, even if a newer orchgpu wrote it. Raises INVALID."""
    return known(logger, decode_json_known(cls, body, key))
