"""Findings about one function's settings: runtime, log, role, owners of buckets, ends of jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from fdl.beside_device import Host
from fdl.diagnostics import Finding, Severity
from fdl.graph.graph import overlap
from fdl.model import LAMBDA_TIMEOUT_S_MAX, Document, Function, Path, Storage
from fdl.plan.advance import advance_s, asked_advance_s, why_not_ahead
from fdl.plan.desired import RETENTION
from fdl.plan.functions import variables_of
from fdl.plan.resources import DeployTarget
from fdl.plan.served import no_url
from fdl.plan.uploads import RULE_CHARACTERS_MAX
from fdl.role import ROLE_PATH
from fdl.served import NAME_CHARS_MAX, http_name
from gpu_scheduler.data_names import name_of
from gpu_scheduler.model import Request

#: The runner is written for Python 3.11; Lambda's 3.11 runs on Amazon Linux 2, whose end is near.
_RUNNER_MINOR, _AWS_MINOR = 11, 12
#: Placeholders of a key's pattern; `orchgpu.core.function` fills them in.
WORDS = ("{job}", "{key}", "{name}", "{stem}")
_BRACES = re.compile(r"\{[^{}]*\}?|\}")
_E, _W = Severity.ERROR, Severity.WARNING
#: Of a job's overrides AWS Batch takes 8,192 characters as JSON; the rest is for its order.
_BATCH_CHARS_MAX = 7000
#: Below these levels Lambda stores the lines by which `orchgpu logs` knows a job.
_KNOWING = ("TRACE", "DEBUG", "INFO")
#: Settings that other clouds accept and do not apply, with their value by default.
_AWS_ONLY = (
    ("ephemeral_storage_mib", "ephemeral_storage", 512),
    ("kms_key", "kms_key", None),
    ("tracing", "tracing", "PassThrough"),
)


def settings_findings(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    """Errors and suspicious values of one function's settings."""
    yield from _runtime(function, place)
    yield from _service(function, place)
    yield from _logging(function)
    yield from _role(function, place)
    yield from _concurrency(function, place)
    if place is not None and place.local:
        for attribute, key, default in _AWS_ONLY:
            if getattr(function.function, attribute) != default:
                message = "no effect: off AWS it is accepted and not applied"
                yield Severity.NOTE, f"{function.path}.lambda.{key}", message


def place_findings(function: Function) -> Iterator[Finding]:
    """Findings about the place where a deployed function runs."""
    path = f"{function.path}.execution"
    if function.on_host and function.gpu is None and not function.in_batch:
        message = "needs a device, whose lease names the host: write `gpu:`, or leave it out; or"
        message += " name AWS Batch by `host: {batch: …}`"
        yield _E, path, message
    elif function.on_host and not function.queued:
        yield _E, path, "needs jobs: on a host no object starts a function by itself"
    elif not function.on_host and function.host != Host():
        yield _W, f"{function.path}.host", "no effect without `execution: host` or `auto`"
    if function.in_batch:
        yield from _batch_findings(function)


def _batch_findings(function: Function) -> Iterator[Finding]:
    if (
        function.log_group == function.host.log_group
        and function.cloudwatch.get(RETENTION) is not None
    ):
        message = f"no effect: {function.log_group} has the logs of all of Batch's jobs; name a"
        message += " group by `logging: {group: …}`, and in the job definition"
        yield _W, f"{function.path}.cloudwatch.{RETENTION}", message
    encoded = json.dumps(json.dumps(variables_of(function), ensure_ascii=False), ensure_ascii=False)
    if len(encoded) > _BATCH_CHARS_MAX:
        message = (
            f"AWS Batch leaves {_BATCH_CHARS_MAX} characters for variables and secrets, and these"
            f" have {len(encoded)} with quotes: put them into a file of extra_payload"
        )
        yield _E, f"{function.path}.host.batch", message


def _service(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    """Why no HTTP service can run a function that names one."""
    if function.service is None:
        return
    path, block = f"{function.path}.service", f"{function.path}.lambda"
    if not _has_port(function.service.url):
        yield _E, f"{path}.url", "a port is 1 to 65535"
    if place is not None and not place.by_services:
        message = "this cloud runs functions in Lambda: leave it out, or deploy to cloud `own`"
        yield _E, path, message
    if function.execution != "lambda":
        message = f"`execution: {function.execution}` names another place: leave one of them out"
        yield _E, path, message
    if not function.queued:
        yield _E, path, "needs jobs: no object starts a service by itself"
    if function.foreign or function.function.runtime == "image":
        message = "its container runs code by our runner: write `completion: result`, and no image"
        yield _E, path, message
    if function.job is not None and function.job.start == "event":
        message = "a service is started by the orchestrator alone: leave it out"
        yield _E, f"{function.path}.job.start", message
    if function.function.layers:
        message = (
            "a service has none: put the files into its image, or name them by `extra_payload`"
        )
        yield _E, f"{block}.layers", message


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def via_findings(function: Function) -> Iterator[Finding]:
    """Inputs whose events cannot come by the way that they name."""
    for path, storage in function.storages:
        message, queue = "", function.queues[0]
        if storage.via == "s3":
            continue
        if ".output[" in path or storage not in function.user_input:
            message = "users upload nothing here: it is of inputs"
        elif function.workflow:
            message = "uploads of a workflow start its runs, and their events come from S3 itself"
        elif not function.queued:
            message = "needs jobs, whose queue gets the events"
        elif storage.via == "eventbridge" and storage.owner is not None:
            message = "S3 sends the events of another account's bucket to that one's EventBridge"
        elif storage.via == "eventbridge" and len(queue) > RULE_CHARACTERS_MAX:
            message = f"EventBridge takes {RULE_CHARACTERS_MAX} characters, and it is named {queue}"
        if message:
            yield _E, f"{path}.via", message


def data_findings(function: Function) -> Iterator[Finding]:
    """Data sets and programs that are named twice; with two contents no host has both."""
    request = function.gpu.request if function.gpu is not None else Request()
    for key, references in (("data", request.data), ("programs", request.programs)):
        contents: dict[str, str] = {}
        for index, reference in enumerate(references):
            name, path = name_of(reference), f"{function.path}.gpu.{key}[{index}]"
            if reference in references[:index]:
                yield _W, path, f"{name} is named twice"
            elif reference != name and contents.setdefault(name, reference) != reference:
                yield _E, path, f"{name} is named with another content before: no host has both"


def declared_data_findings(function: Function, others: Iterable[Function]) -> Iterator[Finding]:
    """Data without a device, of which hosts have the name too, or that steps declare otherwise.

    `others`: all functions; those of one group share a host.
    """
    references = () if function.gpu is None else function.gpu.request.data
    named = {name_of(reference) for reference in references}
    for name, one in function.data.items():
        path = f"{function.path}.data.{name}"
        if function.gpu is None and function.group is None:
            yield _E, path, "data is fetched by the host of a device: add `gpu: {}`"
        if name in named:
            yield _E, path, "is in gpu.data too; keep one"
        for other in others:
            same = function.group is not None and other.group == function.group
            if same and other.data.get(name, one) != one:
                yield _E, path, f"step {other.name} of the group has other data by this name"


def _runtime(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    """Runtimes that cannot import the runner; code that it does not run has its own needs."""
    runtime, path = function.function.runtime, f"{function.path}.lambda.runtime"
    if not runtime.startswith("python3.") or function.foreign:
        return
    minor = int(runtime.removeprefix("python3."))
    if minor < _RUNNER_MINOR:
        yield _E, path, f"the runner needs Python 3.{_RUNNER_MINOR} or newer: write python3.12"
    elif minor < _AWS_MINOR and (place is None or not place.local):
        message = (
            f"on AWS {runtime} runs on Amazon Linux 2, whose libraries lack calls of Linux that the"
            " runner uses: write python3.12"
        )
        yield (_W if place is None else _E), path, message


def _logging(function: Function) -> Iterator[Finding]:
    logging, path = function.function.logging, f"{function.path}.lambda.logging"
    if logging.format != "JSON":
        for key, level in (("level", logging.level), ("system_level", logging.system_level)):
            if level is not None:
                yield _E, f"{path}.{key}", "needs `format: JSON`: Lambda filters no text"
        return
    for key, level in (("level", logging.level), ("system_level", logging.system_level)):
        if level is not None and level not in _KNOWING:
            message = "hides the lines by which `orchgpu logs` finds a job's run; write INFO"
            yield _W, f"{path}.{key}", message


def _concurrency(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    """A limit of runs that nothing keeps uploads, or the jobs of an orchestrator, below.

    https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html
    """
    reserved, job = function.function.reserved_concurrency, function.job
    jobs_max = None if job is None else job.concurrency_max
    if reserved is None or (place is not None and place.local):
        return
    if (job is None and function.gpu is None) or (jobs_max is not None and jobs_max > reserved):
        message = (
            f"on AWS the events beyond {reserved} runs at a time are throttled: each waits 1 s,"
            " then twice as long up to 5 min, also while runs are free"
        )
        yield _W, f"{function.path}.lambda.reserved_concurrency", message


def _role(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    iam, path = function.iam, f"{function.path}.iam"
    if not iam.create:
        for key, given in (
            ("permissions_boundary", iam.permissions_boundary is not None),
            ("path", iam.path != ROLE_PATH),
        ):
            if given:
                yield (
                    _E,
                    f"{path}.{key}",
                    "needs `create: true`: it is of the role that deploy makes",
                )
    boundary = iam.permissions_boundary
    if boundary is not None and place is not None and not place.local:
        account = boundary.split(":")[4]
        if account not in ("aws", place.account):
            message = f"is a policy of account {account}, the role is one of {place.account}"
            yield _E, f"{path}.permissions_boundary", message


def owner_findings(functions: Sequence[Function]) -> Iterator[Finding]:
    """A bucket has one owner, whichever path of a file names it."""
    known: dict[str, str | None] = {}
    for function in functions:
        for path, storage in function.storages:
            bucket = storage.path.bucket
            if known.setdefault(bucket, storage.owner) != storage.owner:
                message = f"another path of bucket {bucket} names another owner; write one owner"
                yield _E, f"{path}.owner", message
            if storage.owner is not None and bucket == function.intermediate.bucket:
                yield _E, f"{path}.owner", "envelopes and results need a bucket of this account"


def advance_findings(function: Function) -> Iterator[Finding]:
    """Findings about `advance`, the wait of a deployed function for its device."""
    asked_s, path = asked_advance_s(function), f"{function.path}.job.advance"
    if not asked_s:
        return
    if why := why_not_ahead(function):
        yield _W, path, f"no effect: {why}"
        return
    declared_s, wait_s = function.function.timeout_s, advance_s(function)
    if wait_s < asked_s:
        message = (
            f"with lambda.timeout ({declared_s} s) it is more than Lambda's {LAMBDA_TIMEOUT_S_MAX}"
            f" s: the function waits for {wait_s} s"
        )
        yield _W, path, message


# ---------------------------------------------------------------------- `completion: object`


def completion_findings(function: Function, others: tuple[Function, ...]) -> Iterator[Finding]:
    """Findings about one function's `completion` and `object`."""
    job = function.job
    if job is None:
        return
    path = f"{function.path}.job"
    if job.object is None:
        if function.foreign:
            message = "needs job.object: the one key whose change ends a job"
            yield _E, f"{path}.completion", message
        return
    if not function.foreign:
        yield _E, f"{path}.object", "has no effect without completion: object"
        return
    if job.start == "invoke":
        message = "code that our runner does not run would run twice: leave it to the event"
        yield _E, f"{path}.start", message
    yield from _code(function)
    yield from _pattern(f"{path}.object", job.object)
    place = Storage(path=Path(bucket=job.object.bucket, prefix=_fixed(job.object)))
    for other in others:
        if any(overlap(place, storage) for storage in other.user_input):
            message = f"objects there start {other.name}; S3 notifies only one: change a key"
            yield _E, f"{path}.object", message
    if not any(_below(job.object, output) for output in function.function.output):
        yield _W, f"{path}.object", "no output of the function lies there"


def _code(function: Function) -> Iterator[Finding]:
    if function.function.init_script is not None and function.image is None:
        message = "our runner runs init_script and commits a result: write completion: result"
        yield _E, f"{function.path}.job.completion", message


def _pattern(path: str, pattern: Path) -> Iterator[Finding]:
    found = _BRACES.findall(pattern.prefix)
    if not found:
        message = f"every job would end with the same object: put one of {', '.join(WORDS)} into it"
        yield _E, path, message
    for word in found:
        if word not in WORDS:
            yield _E, path, f"{word} is not one of {', '.join(WORDS)}"
    if found and "{job}" not in found:
        message = "jobs of inputs with equal names share a key; {job} in it makes keys unique"
        yield Severity.NOTE, path, message


def _fixed(pattern: Path) -> str:
    """The folders before the first word."""
    return pattern.prefix.partition("{")[0].rpartition("/")[0]


def _below(pattern: Path, output: Storage) -> bool:
    return pattern.bucket == output.path.bucket and pattern.prefix.startswith(
        output.path.key_prefix
    )


def http_findings(document: Document, functions: tuple[Function, ...]) -> Iterator[Finding]:
    """URLs that are not made. `functions`: those that a deploy makes; a group is one."""
    made = {function.path: function for function in functions}
    for step in document.functions.aws:
        if step.http is None or not step.http.enabled:
            continue
        path, found = f"{step.path}.http", made.get(step.path)
        reason = no_url(found) if found else f"jobs of the group {step.group} start at another step"
        if reason:
            yield _W, path, f"no URL is made: {reason}"
        elif found is not None and len(http_name(found.name)) > NAME_CHARS_MAX:
            most = NAME_CHARS_MAX - len("-http")
            name = http_name(found.name)
            yield _E, path, f"needs a name of {most} characters at most, for {name}"
