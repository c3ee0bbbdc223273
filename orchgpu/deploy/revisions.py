"""The revisions of a function: its deploys, kept for a rollback.

A revision is the whole desired state of one function, as data, with its package: nothing has to be
built or parsed again. Revisions are in the state bucket; the running system does not read them:

    revisions/<function>/<number>.json        numbers rise and are never used twice
    revisions/<function>/<sha256>.zip         the packages that they name
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from fdl.plan.desired import DesiredFunction
from fdl.plan.plan import Action, Plan, Step
from fdl.plan.resources import KINDS, FunctionResource, Ledger, Package, Record, Resource, digest
from fdl.written import Written

#: Older ones are deleted; a rollback comes minutes or days after a deploy.
REVISIONS_KEPT = 20
#: Lines of what a deploy changed; a first deploy creates about twenty things.
SUMMARY_LINES_MAX = 40


class Revision(Value):
    """One deployed state of one function."""

    name: str  #: the function's
    number: int  #: from 1
    deployed_at_s: float  #: wall clock
    digest: str  #: of the resources: equal ones are one revision
    note: str  #: for people: "rollback to 3"
    summary: tuple[str, ...]  #: the changes, as sentences of the plan
    package: str  #: hex sha256 of the kept zip; "" = none
    resources: tuple[Mapping[str, object], ...]  #: each with its `kind`
    written: Written | None = None  #: the part of the file; None: it is not known

    @property
    def changes(self) -> str:
        """One line: the note, else changes by name and the number of created resources."""
        created = sum(line.startswith("+") for line in self.summary)
        changed = [line.removeprefix("~ ") for line in self.summary if line.startswith("~")]
        if self.note or (self.number == 1 and not changed):
            return self.note or "first deploy"
        return "; ".join([*changed, *([f"{created} created"] if created else [])])

    def wanted(self) -> DesiredFunction:
        """The desired state, for a plan. Raises INVALID when another version wrote it."""
        return DesiredFunction(
            name=self.name, resources=tuple(_resource(self, value) for value in self.resources)
        )


def _resource(revision: Revision, value: Mapping[str, object]) -> Resource:
    kind = KINDS.get(str(value.get("kind")))
    if kind is None:
        raise invalid(f"revision {revision.number} of {revision.name}: unknown {value.get('kind')}")
    fields = {key: field for key, field in value.items() if key != "kind"}
    path = f"revision {revision.number} of {revision.name}"
    return cast("Resource", decode(kind, fields, path))


def revision_of(
    wanted: DesiredFunction,
    *,
    number: int,
    at_s: float,
    note: str,
    plan: Plan,
    package: str,
    written: Written | None = None,
) -> Revision:
    resources = tuple(_plain(resource) for resource in wanted.resources)
    names = [resource.name for resource in wanted.resources]
    lines = [
        step.sentence() for step in plan.steps if _is_reported(step) and step.resource.name in names
    ]
    return Revision(
        name=wanted.name,
        number=number,
        deployed_at_s=at_s,
        digest=digest(list(resources)),
        note=note,
        summary=tuple(lines[:SUMMARY_LINES_MAX]),
        package=package,
        resources=resources,
        written=written,
    )


def _is_reported(step: Step) -> bool:
    return not isinstance(step.resource, Ledger | Record) and step.action is not Action.DELETE


def _plain(resource: Resource) -> dict[str, object]:
    return {"kind": resource.kind, **cast("dict[str, object]", encode(resource))}


def digest_of(wanted: DesiredFunction) -> str:
    """Equal for equal states."""
    return digest([_plain(resource) for resource in wanted.resources])


def package_of(wanted: DesiredFunction) -> str:
    """The sha256 of the zip that a state needs; "" for an image that brings its own code."""
    for resource in wanted.resources:
        if isinstance(resource, FunctionResource) and resource.package:
            return resource.package
        if isinstance(resource, Package):
            return resource.sha256
    return ""


def chosen(name: str, revisions: tuple[Revision, ...], number: int | None) -> Revision:
    """The revision to go back to: the one before the newest, or `number`. Raises NOT_FOUND."""
    if number is None:
        if len(revisions) < 2:
            known = "it has only one" if revisions else "it is not deployed here"
            raise AppError(ErrorCode.NOT_FOUND, f"{name} has no earlier revision: {known}")
        return revisions[-2]
    for revision in revisions:
        if revision.number == number:
            return revision
    kept = ", ".join(str(revision.number) for revision in revisions) or "none"
    raise AppError(ErrorCode.NOT_FOUND, f"{name} has no revision {number}; kept are {kept}")
