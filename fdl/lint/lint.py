"""Errors and suspicious settings of a document that parsed, as diagnostics.

An ERROR stops a deploy, a WARNING is shown by it, a NOTE only by `fdl validate`. Facts about files
come from the caller (`FileFacts`); rules of AWS alone, or of other clouds alone, are checked when
the `DeployTarget` is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from contract.timing import RESERVE_S, kept_back
from corekit.clear_secrets import looks_secret
from corekit.suggest import did_you_mean
from fdl.diagnostics import (
    NO_FILE,
    Diagnostic,
    FileFacts,
    FileKind,
    Finding,
    MiddlewareFacts,
    Severity,
)
from fdl.lint.flow import deployment_findings, workflow_findings
from fdl.lint.notify import notify_findings
from fdl.lint.schedule import object_findings, schedule_findings
from fdl.lint.settings import (
    advance_findings,
    completion_findings,
    data_findings,
    declared_data_findings,
    http_findings,
    owner_findings,
    place_findings,
    settings_findings,
    via_findings,
)
from fdl.lint.variables import (
    CLEAR_REMEDY,
    LOADERS,
    OUR_NAME,
    SET_BY_RUNNER,
    risky,
    secret_findings,
)
from fdl.lint.workflows import run_findings, sandbox_findings
from fdl.model import Document, Function, Storage
from fdl.plan.desired import RETENTION
from fdl.plan.functions import variables_of
from fdl.plan.groups import check, deployed
from fdl.plan.placeholders import has_placeholders
from fdl.plan.resources import DeployTarget
from gpu_scheduler.model import Placement

#: Lambda's quota for all names and values together.
ENVIRONMENT_BYTES_MAX = 4096
#: Lambda's own names; CreateFunction refuses some of them and overwrites the others.
_RESERVED_NAME = re.compile(r"AWS_|LAMBDA_|_HANDLER$|ORCHGPU_")
_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
#: Architectures in the name or tag of an image.
_ARCHITECTURE = re.compile(r"[-_:.](arm64|aarch64|amd64|x86_64)\b")
_ECR_IMAGE = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/.+")


def lint(
    document: Document,
    *,
    files: Mapping[str, FileFacts] | None = None,
    place: DeployTarget | None = None,
    middlewares: Mapping[str, MiddlewareFacts] | None = None,
) -> tuple[Diagnostic, ...]:
    """All findings, in the order of the file.

    Without `files` no file is checked, without `middlewares` (those known here) none of them.
    """
    of_groups = list(check(document))
    findings = [*_document(document), *of_groups]
    findings += workflow_findings(document.functions.aws, place)
    findings += sandbox_findings(document)
    if not of_groups:
        findings += deployment_findings(deployed(document))
        for function in deployed(document):
            findings += advance_findings(function)
            findings += [*place_findings(function), *via_findings(function)]
        findings += run_findings(document, deployed(document))
        findings += notify_findings(document, deployed(document))
        findings += schedule_findings(document, deployed(document))
        findings += http_findings(document, deployed(document))
    findings += owner_findings(document.functions.aws)
    for function in document.functions.aws:
        findings += _one_place(function)
        findings += _script_time(function, document)
        findings += _times(function)
        findings += _middleware(function, middlewares)
        findings += completion_findings(function, document.functions.aws)
        findings += _storages(function)
        findings += _variables(function, middlewares or {})
        findings += secret_findings(function, place, files)
        findings += _code(function, place)
        findings += _outside(function)
        findings += settings_findings(function, place)
        findings += data_findings(function)
        findings += declared_data_findings(function, document.functions.aws)
        if place is not None:
            findings += _at_place(function, place)
        else:
            findings += _unresolved(function)
        if files is not None:
            findings += [*_files(function, files), *object_findings(function, files)]
    notes = [
        Diagnostic(
            severity=severity,
            path=document.written(path),
            at=document.location(path),
            message=message,
        )
        for severity, path, message in findings
    ]
    notes += [
        Diagnostic(severity=_W, path=rewrite.path, at=rewrite.at, message=rewrite.message)
        for rewrite in document.rewrites
    ]
    return tuple(sorted(notes, key=lambda note: note.at))


def _document(document: Document) -> Iterator[Finding]:
    if not document.functions.aws:
        yield _E, "functions", "functions.aws has no function"
    yield from _one_deploy(document)
    for path, about in document.ignored:
        yield Severity.NOTE, path, f"no effect: {_within_a_sentence(about)}"


def _within_a_sentence(text: str) -> str:
    """Without its capital, unless that is a name's (`AWS`), and without its end."""
    first = text[0].lower() if text[1:2].islower() or text[1:2] == " " else text[0]
    return first + text[1:].rstrip(".")


def _one_deploy(document: Document) -> Iterator[Finding]:
    """Regions and profiles must agree: a file's functions are deployed together."""
    functions = document.functions.aws
    for key in ("region", "boto_profile"):
        named = [function for function in functions if getattr(function.function, key)]
        for function in named[1:]:
            if getattr(function.function, key) != getattr(named[0].function, key):
                path = f"{function.path}.lambda.{key}"
                other = document.written(f"{named[0].path}.lambda.{key}")
                yield _E, path, f"differs from {other}: {_one(key)}"


def _one_place(function: Function) -> Iterator[Finding]:
    """Regions and profiles of the other blocks, which SCAR lets differ; a deploy has one."""
    path, declared = function.path, function.function
    role = {"region": function.iam.region, "boto_profile": function.iam.boto_profile}
    neighbours = {"ecr": function.ecr, "cloudwatch": function.cloudwatch, "s3": function.s3}
    blocks = (("iam", role), *neighbours.items())
    for block, values in blocks:
        for key in ("region", "boto_profile"):
            other = getattr(declared, key)
            if values.get(key) not in (None, other):
                message = f"differs from lambda.{key} ({other or 'not written'}): {_one(key)}"
                yield _E, f"{path}.{block}.{key}", message


def _one(key: str) -> str:
    return "one deploy, one region" if key == "region" else "one deploy, one profile"


def _times(function: Function) -> Iterator[Finding]:
    """Durations that must not end before others: function, lease, deadline, retention."""
    path, declared, gpu = function.path, function.function, function.gpu
    job = function.job
    if job is not None:
        longest_s = job.attempts_max * declared.timeout_s
        if job.queue.retention_s < longest_s:
            message = (
                f"shorter than {job.attempts_max} attempts may take ({longest_s} s): jobs are lost"
            )
            yield _E, f"{path}.job.queue.retention", message
    if gpu is None:
        return
    request = gpu.request
    if request.lease_s is not None and request.lease_s < declared.timeout_s:
        message = f"shorter than lambda.timeout ({declared.timeout_s} s), which the run may take"
        yield _E, f"{path}.gpu.lease_length", message
    if request.deadline_s is not None and (request.max_wait_s or 0.0) > request.deadline_s:
        yield _W, f"{path}.gpu.max_wait", "never reached: gpu.deadline comes first"
    if gpu.on_unavailable == "requeue" and request.max_wait_s is None:
        message = "needs gpu.max_wait: without it a job waits for its device anyway"
        yield _E, f"{path}.gpu.on_unavailable", message


def _script_time(function: Function, document: Document) -> Iterator[Finding]:
    """Timeouts that leave the script too little time before its outputs are uploaded."""
    declared, container = function.function, function.function.container
    path, timeout_s = f"{function.path}.lambda", declared.timeout_s
    threshold_s, key = container.timeout_threshold_s, f"{path}.container.timeout_threshold"
    if key in document.locations and threshold_s >= timeout_s:
        yield _E, key, f"leaves the script no time: the function's timeout is {timeout_s} s"
        return
    kept_s, rule = kept_back(timeout_s, threshold_s)
    if rule == "half":
        wanted_s = max(threshold_s, RESERVE_S)
        message = (
            f"the script is stopped after {timeout_s - kept_s:g} s of these {timeout_s} s: half is"
            f" kept for uploading its outputs; write {timeout_s + wanted_s:g} for a script that"
            f" needs {timeout_s} s"
        )
        yield _W, f"{path}.timeout", message


def _middleware(
    function: Function, known: Mapping[str, MiddlewareFacts] | None
) -> Iterator[Finding]:
    gpu, path = function.gpu, f"{function.path}.gpu.middleware"
    if gpu is None or known is None:
        return
    if (facts := known.get(gpu.middleware)) is None:
        names = ", ".join(known)
        hint = did_you_mean(gpu.middleware, known)
        message = f"{gpu.middleware!r} is not a middleware known here ({names}){hint}"
        yield _W, path, message
        return
    count, placement = gpu.request.count, gpu.request.placement
    if facts.one_host and count > 1 and placement is not Placement.SAME_HOST:
        message = f"its client reaches one host: {count} devices need placement: same_host"
        yield _E, path, message


def _storages(function: Function) -> Iterator[Finding]:
    declared = function.function
    for path, storage in function.storages:
        provider = storage.storage_provider
        if provider not in ("s3", "s3.default"):
            message = f"{provider!r} is not supported; only s3 by the function's role is"
            yield _E, f"{path}.storage_provider", message
        if storage.prefixes and ".output[" not in path:
            yield _E, f"{path}.prefix", "prefix filters outputs only; write it into path"
        yield from _patterns(path, storage)
    yield from _inputs(function)
    if not declared.output:
        yield _W, f"{function.path}.lambda", "no output: files the script writes are dropped"
    if declared.file_system and not declared.vpc.subnet_ids:
        yield _E, f"{function.path}.lambda.file_system", "a file system needs vpc.SubnetIds"


def _inputs(function: Function) -> Iterator[Finding]:
    count, path = len(function.user_input), function.path
    if function.queued and (count == 0 or (count > 1 and not function.workflow)):
        message = (
            f"a function with `gpu:` or `job:` has exactly one input, this one has {count}: write"
            " `job: {input: BUCKET/PREFIX}`"
        )
        yield _E, f"{path}.job.input", message
    if not function.queued and function.gpu is not None:
        yield _E, f"{path}.job", "none, but only a job gets the device of `gpu:`; remove one"
    if not function.queued and not count:
        yield _W, f"{path}.lambda", "no input: nothing triggers this function"
    if count > 1 and function.job is None and function.gpu is None and not function.workflow:
        message = (
            f"{count} inputs, and jobs have one: objects start the function by themselves, as with"
            " `job: none`; write a function for each input"
        )
        yield _W, f"{path}.lambda.input", message


def _patterns(path: str, storage: Storage) -> Iterator[Finding]:
    """Filters with wildcards of a shell (`*.txt`), which are compared literally."""
    for key, texts in (("suffix", storage.suffixes), ("prefix", storage.prefixes)):
        for pattern in texts:
            if "*" in pattern or "?" in pattern:
                bare = pattern.strip("*")
                wanted = bare if not set("*?") & set(bare) else ""
                write = f"write {wanted!r}" if wanted else "leave it out"
                message = f"{pattern!r} is compared literally and matches no usual name; {write}"
                yield _W, f"{path}.{key}", message


def _variables(function: Function, known: Mapping[str, MiddlewareFacts]) -> Iterator[Finding]:
    declared = function.function
    both = (
        ("lambda.environment", declared.variables, _RESERVED_NAME),
        ("lambda.container.environment", declared.container.variables, OUR_NAME),
    )
    facts = known.get(function.gpu.middleware) if function.gpu else None
    wanted = facts.loaders if facts is not None else ()
    for block, variables, reserved in both:
        path = f"{function.path}.{block}.Variables"
        for name, value in variables.items():
            if looks_secret(name, value):
                message = f"looks like a secret in clear; {CLEAR_REMEDY.format(name)}"
                yield _W, f"{path}.{name}", message
            if reserved.match(name):
                yield _E, f"{path}.{name}", "this name is reserved"
            elif name in SET_BY_RUNNER and block != "lambda.environment":
                yield (
                    _W,
                    f"{path}.{name}",
                    "the runner sets it, so the script never sees this value",
                )
            elif name in wanted:
                continue
            elif block == "lambda.environment" and name in LOADERS:
                yield _W, f"{path}.{name}", "loads code into the function's runner and the script"
            elif (why := risky(name)) and block != "lambda.environment":
                yield _W, f"{path}.{name}", why
    size = sum(len(k.encode()) + len(v.encode()) for k, v in variables_of(function).items())
    if size > ENVIRONMENT_BYTES_MAX:
        message = (
            f"the variables have {size} bytes with our own; Lambda allows {ENVIRONMENT_BYTES_MAX}"
        )
        yield _E, f"{function.path}.lambda.environment", message


def _runs_its_image(function: Function, place: DeployTarget) -> bool:
    """True on AWS, where an image function without a script runs the image's own command."""
    return not place.local and function.function.runtime == "image"


def _code(function: Function, place: DeployTarget | None) -> Iterator[Finding]:
    declared, path = function.function, f"{function.path}.lambda"
    if declared.runtime == "image" and declared.container.image is None:
        yield _E, f"{path}.runtime", "'image' needs container.image"
    if declared.init_script is not None and declared.handler is not None:
        yield _E, f"{path}.handler", "init_script is given too; keep one"
    image_runs = function.foreign and function.image is not None
    is_without_code = function.runs is None and function.host.image is None
    if is_without_code and image_runs:
        if place is not None and place.local:
            message = "no container is started here, so an image's own command is not run"
            yield _E, f"{path}.container.image", message
    elif is_without_code and function.queued:
        message = "no script: a job has nothing to run; add init_script or handler"
        yield _E, f"{path}.init_script", message
    elif is_without_code and (place is None or not _runs_its_image(function, place)):
        own = "an image's own command is not run here" if function.image else "no script"
        yield _W, f"{path}.init_script", f"{own}: nothing runs until you add init_script"
    named = _ARCHITECTURE.search(declared.container.image or "")
    if declared.runtime == "image" and named is not None:
        built = "arm64" if named[1] in ("arm64", "aarch64") else "x86_64"
        if built != declared.architectures[0]:
            message = (
                f"the image is called {named[1]}, the function is {declared.architectures[0]}:"
                f" write architectures: [{built}]"
            )
            yield _W, f"{path}.architectures", message
    if declared.architectures == ("arm64",) and declared.runtime != "image":
        yield _W, f"{path}.architectures", "arm64: the script and its programs must be built for it"


def _at_place(function: Function, place: DeployTarget) -> Iterator[Finding]:
    declared, image = function.function, function.function.container.image
    if place.local:
        if RETENTION in function.cloudwatch:
            key = f"{function.path}.cloudwatch.{RETENTION}"
            yield Severity.NOTE, key, "no effect: off AWS there is no CloudWatch"
        return
    if function.iam.role is None and not function.iam.create:
        message = "AWS needs a role: write `iam: {role: ARN}`, or `iam: {create: true}`"
        yield _E, f"{function.path}.iam.role", message
    if declared.runtime == "image" and image is not None and not _ECR_IMAGE.fullmatch(image):
        yield _E, f"{function.path}.lambda.container.image", "Lambda takes images from ECR only"
    if declared.runtime != "image" and image is not None:
        message = "a zip function cannot run in an image (no udocker here); write runtime: image"
        yield _E, f"{function.path}.lambda.container.image", message
    if declared.container.image_file is not None:
        message = "it is not unpacked; push the image to ECR and name it in container.image"
        yield _E, f"{function.path}.lambda.container.image_file", message
    if declared.container.create_image:
        message = "images are not built here; push it to ECR and write false"
        yield _E, f"{function.path}.lambda.container.create_image", message
    if function.queued and not declared.vpc.subnet_ids:
        message = "no vpc: GPU hosts with private addresses cannot be reached"
        yield _W, f"{function.path}.lambda", message


def _unresolved(function: Function) -> Iterator[Finding]:
    for storage in (*function.user_input, *function.function.output):
        if has_placeholders(storage.path):
            message = f"{storage.path}: a deploy replaces {{account}} and {{region}} by its own"
            yield _N, f"{function.path}", message


def _outside(function: Function) -> Iterator[Finding]:
    """Files of the package that lie outside of the definition's folder."""
    declared = function.function
    for key, name in (
        ("init_script", declared.init_script),
        ("extra_payload", declared.extra_payload),
    ):
        if name is not None and (name.startswith("/") or ".." in name.split("/")):
            message = f"{name!r} lies outside of this file's folder: deploy needs --allow-outside"
            yield _W, f"{function.path}.lambda.{key}", message


def _files(function: Function, files: Mapping[str, FileFacts]) -> Iterator[Finding]:
    extra = function.function.extra_payload
    if function.runs is not None:
        yield from _program(function, files.get(function.runs, NO_FILE))
    if extra is not None:
        facts = files.get(extra, NO_FILE)
        if not facts.exists or facts.kind is not FileKind.FOLDER:
            message = f"{extra!r} is not a folder (paths start at this file's folder)"
            yield _E, f"{function.path}.lambda.extra_payload", message


def _program(function: Function, facts: FileFacts) -> Iterator[Finding]:
    handler = function.function.handler
    path = f"{function.path}.lambda.{'handler' if handler else 'init_script'}"
    if facts.problem:
        name = function.runs or ""
        start = "an absolute path" if name.startswith("/") else "paths start at this file's folder"
        yield _E, path, f"{name!r} {facts.problem} ({start})"
    elif handler is not None:
        name = handler.rpartition(".")[2]
        if facts.defines is not None and name not in facts.defines:
            yield _E, path, f"{function.runs!r} defines no {name!r}"
    else:
        yield from _script(path, function.runs or "", facts)


def _script(path: str, script: str, facts: FileFacts) -> Iterator[Finding]:
    if facts.first_line.startswith(b"#!") and facts.first_line.endswith(b"\r\n"):
        yield _E, path, f"{script!r} has Windows line ends: its shebang names no program"
    elif facts.crlf:
        yield _W, path, f"{script!r} has Windows line ends"
    if not facts.first_line.startswith((b"#!", b"\x7fELF")):
        yield _W, path, f"{script!r} has no shebang; /bin/sh will run it"
    if not facts.executable:
        yield Severity.NOTE, path, f"{script!r} is not executable; the package makes it so"
