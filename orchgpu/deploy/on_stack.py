"""Functions of a stack of `orchgpu infra`: its network, and the names that its roles reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contract.secrets.reference import SecretReference
from corekit.errors import invalid
from corekit.values import replace
from fdl.diagnostics import Diagnostic, Severity
from fdl.model import Document, Function, Vpc
from fdl.notified import Notified
from fdl.plan.groups import deployed
from orchgpu.local.stack import StackRecord

#: The path of a key, the key's value, the beginning that it needs.
_Name = tuple[str, str, str]


def without_network(document: Document, stack: StackRecord) -> tuple[str, ...]:
    """The functions that need the stack's network: those with a device whose `vpc` is not written.

    The steps of a group share a network, so all of them do when one has a device.
    """
    if not stack.subnets:
        return ()
    asking = {one.name for one in document.sandboxes if one.gpu is not None}
    asking |= {f.group for f in document.functions.aws if f.gpu is not None and f.group}
    return tuple(
        f.name
        for f in document.functions.aws
        if (f.gpu is not None or f.group in asking)
        and f"{f.path}.lambda.vpc" not in document.locations
    )


def network_of(stack: StackRecord) -> Vpc:
    """The network in which functions reach the stack's hosts and scheduler."""
    if not stack.subnets:
        return Vpc()
    return Vpc(subnet_ids=stack.subnets, security_group_ids=(stack.function_group,))


def in_network(document: Document, stack: StackRecord) -> Document:
    """The same, with the functions that need it in the stack's subnets and group."""
    names, network = without_network(document, stack), network_of(stack)
    functions = tuple(
        replace(f, function=replace(f.function, vpc=network)) if f.name in names else f
        for f in document.functions.aws
    )
    return replace(document, functions=replace(document.functions, aws=functions))


def check_names(document: Document, stack: StackRecord, file: str) -> None:
    """Raise INVALID for names that the roles of the stack do not reach, with those to write.

    Total for a document that `lint` passed. `file`: its name in the message.
    """
    found = [
        Diagnostic(
            severity=Severity.ERROR,
            path=document.written(path),
            at=document.location(path),
            message=f"the roles of the stack {stack.name} reach no {name!r}: write"
            f" {begin + name!r}, or another name that begins with {begin!r}",
        )
        for path, name, begin in _names(document, stack)
        if not name.startswith(begin)
    ]
    if found:
        lines = "\n".join(one.text(file) for one in sorted(found, key=lambda one: one.at))
        raise invalid(f"{lines}\n`--stack ''` deploys without the stack")


def _names(document: Document, stack: StackRecord) -> Iterator[_Name]:
    for workflow in document.workflows:
        yield workflow.path, workflow.name, stack.function_prefix
        yield from _notified(workflow.notify, workflow.path, stack)
    for function in deployed(document):
        path = function.path
        named = f"{path}.group" if function.group else f"{path}.lambda.name"
        yield named, function.name, stack.function_prefix
        yield from _of_jobs(function, stack)
        own_role = function.iam.role is not None  # it may reach what the stack's boundary does not
        for at, storage in function.storages:
            if not (own_role and ".output[" in at):
                yield at, storage.path.bucket, stack.bucket_prefix
        for reference in () if own_role else function.references:
            if reference.stored:
                yield f"{path}.secrets", _entry(reference), stack.secret_prefix


def _of_jobs(function: Function, stack: StackRecord) -> Iterator[_Name]:
    """Names that the file gives, or that come from the function's."""
    path, job = function.path, function.job
    if function.queued:
        bucket, derived = function.intermediate.bucket, job is None or job.intermediate is None
        if not (derived and not function.name.startswith(stack.function_prefix)):
            yield f"{path}.job.intermediate", bucket, stack.bucket_prefix
    if job is not None and job.object is not None:
        yield f"{path}.job.object", job.object.bucket, stack.bucket_prefix
    for queue in function.queue_names:
        if not queue.startswith(f"{function.name}-"):
            yield f"{path}.job.queue", queue, stack.function_prefix
    yield from _notified(function.notify, path, stack)


def _notified(targets: Iterable[Notified], path: str, stack: StackRecord) -> Iterator[_Name]:
    for target in targets:
        if name := target.queue or target.topic.rpartition(":")[2]:
            yield f"{path}.notify", name, stack.function_prefix


def _entry(reference: SecretReference) -> str:
    """The name of an entry, as policies have it."""
    name = reference.entry
    if name.startswith("arn:"):
        name = name.split(":", 5)[5].partition(":" if ":secret:" in name else "/")[2]
    return name.removeprefix("/")
