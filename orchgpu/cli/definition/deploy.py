"""`orchgpu deploy | plan | rm`: from a file to a deployed function and back.

Exit status: `corekit.errors.EXIT_STATUS`; `plan` ends with 0 when there is nothing to do, with 2
when there is, and with 1 for a file that is wrong (so that 2 says one thing only).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corekit.aio.environment import budget_from_environment
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from fdl.lint.diagnostics import Severity
from fdl.model import Document
from fdl.plan.plan import Plan, Step
from orchgpu.adapters.aws.endpoints import ClientSettings, guard_real_aws, require_cloud, resolve
from orchgpu.cli.definition.capacity import capacity_notes
from orchgpu.cli.definition.findings import fail, note_json, reported, show_notes
from orchgpu.cli.scheduler import scheduler_option
from orchgpu.cli.terminal.completing import definition, function_or_definition
from orchgpu.cli.terminal.screen import say, say_json
from orchgpu.deploy.deployment import (
    Drift,
    Prepared,
    drifts,
    execute,
    names_of,
    prepare,
    prepare_removal,
    warm_up,
)
from orchgpu.deploy.files import name_of, read_document

if TYPE_CHECKING:
    from orchgpu.deploy.aws.cloud import AwsCloud

#: `plan` found something to do.
CHANGES_STATUS = 2
#: A wrong file, where 2 already means changes.
WRONG_FILE_STATUS = 1


def cloud_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that speaks to a cloud."""
    for option in reversed(
        (
            click.option("--endpoint-url", help="Where S3, SQS and Lambda are."),
            click.option(
                "--region", help="AWS region; default: the file's, else the environment's."
            ),
            click.option("--profile", help="AWS profile; default: the file's boto_profile."),
            click.option(
                "--json", "as_json", is_flag=True, help="One JSON object on standard output."
            ),
        )
    ):
        command = option(command)
    return command


@click.command()
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@click.option("--yes-real-aws", is_flag=True, help="Create resources on real AWS.")
@reported
def deploy(
    file: Path,
    endpoint_url: str | None,
    region: str | None,
    profile: str | None,
    scheduler: str | None,
    as_json: bool,
    yes_real_aws: bool,
) -> None:
    """Make what FILE declares exist. Running it again changes nothing.

    \b
    Example:  orchgpu deploy fdl.yaml
    """
    document = read_document(file)
    with open_cloud(endpoint_url, region, profile, document) as cloud:
        guard_real_aws(cloud.settings, allowed=yes_real_aws)
        prepared = _prepared(file, document, cloud, scheduler)
        _show_warnings(prepared, file)
        execute_shown(prepared, cloud, as_json=as_json)
        for notice in warm_up(prepared, cloud.aws):
            say(f"note: {notice}", err=True)
        if not as_json:
            done = "deployed" if not prepared.plan.empty else "already deployed"
            say(f"{', '.join(prepared.names)}: {done} ({cloud.where})")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@cloud_options
@scheduler_option
@click.option("--refresh", is_flag=True, help="Also show what was changed since the last deploy.")
@reported
def plan(
    file: Path,
    endpoint_url: str | None,
    region: str | None,
    profile: str | None,
    scheduler: str | None,
    as_json: bool,
    refresh: bool,
) -> None:
    """Show what `deploy FILE` would do. Ends with 2 when there is something to do, else 0.

    \b
    Example:  orchgpu plan fdl.yaml --refresh
    """
    try:
        document = read_document(file)
        with open_cloud(endpoint_url, region, profile, document) as cloud:
            prepared = _prepared(file, document, cloud, scheduler)
            if refresh:
                prepared = replace(prepared, drift=drifts(prepared.names, cloud.aws))
            where = cloud.where
    except AppError as error:
        wrong = error.code is ErrorCode.INVALID
        fail(error, as_json=as_json, status=WRONG_FILE_STATUS if wrong else EXIT_STATUS[error.code])
    _show_warnings(prepared, file)
    if as_json:
        say_json(_json(prepared, where, applied=False))
    else:
        _show_notices(prepared)
        _show_drift(prepared.drift)
        say(f"{', '.join(prepared.names)} ({where})\n{prepared.plan.text()}")
    sys.exit(0 if prepared.plan.empty and not prepared.drift else CHANGES_STATUS)


@click.command(short_help="Remove what a deploy made, and no data.")
@click.argument("target", metavar="FILE|NAME", shell_complete=function_or_definition)
@cloud_options
@click.option("--yes-real-aws", is_flag=True, help="Delete resources on real AWS.")
@click.option("--force", is_flag=True, help="Also when queues still hold messages.")
@reported
def rm(
    target: str,
    endpoint_url: str | None,
    region: str | None,
    profile: str | None,
    as_json: bool,
    yes_real_aws: bool,
    force: bool,
) -> None:
    """Remove the functions of a FILE, or one by NAME: what deploy made, and no data.

    A FILE may be removed again; a NAME that is not deployed ends with 3.

    \b
    Example:  orchgpu rm fdl.yaml
    """
    names = names_of(target)
    document = (
        read_document(Path(target)) if (target,) != names and Path(target).is_file() else None
    )
    with open_cloud(endpoint_url, region, profile, document) as cloud:
        guard_real_aws(cloud.settings, allowed=yes_real_aws)
        prepared = prepare_removal(names, cloud.aws, force=force)
        if prepared.plan.empty and document is None and not prepared.plan.kept:
            message = f"nothing named {target!r} is deployed here ({cloud.where})"
            raise AppError(ErrorCode.NOT_FOUND, message)
        execute_shown(prepared, cloud, as_json=as_json)
        if not as_json:
            for kept in prepared.plan.kept:
                say(f"{kept.key.replace('/', ' ', 1)} stays: {kept.reason}")
            done = "removed" if not prepared.plan.empty else "nothing of it is deployed"
            say(f"{', '.join(names)}: {done} ({cloud.where})")


def _prepared(file: Path, document: Document, cloud: OpenCloud, scheduler: str | None) -> Prepared:
    """A plan, with what the scheduler says of its requests among the findings."""
    prepared = prepare(file, cloud.aws, budget_from_environment(), document)
    capacity = capacity_notes(document, scheduler)
    return replace(prepared, notes=(*prepared.notes, *capacity))


class OpenCloud:
    """A cloud with how it was found."""

    def __init__(self, aws: AwsCloud, settings: ClientSettings) -> None:
        self.aws = aws
        self.settings = settings

    @property
    def where(self) -> str:
        place = self.aws.place
        endpoint = self.settings.endpoint_url or self.settings.source
        return f"account {place.account}, {place.region}, {endpoint}"


@contextmanager
def open_cloud(
    endpoint_url: str | None, region: str | None, profile: str | None, document: Document | None
) -> Iterator[OpenCloud]:
    declared_region, declared_profile = _declared(document)

    def settings(service: str) -> ClientSettings:
        found = resolve(service, endpoint_url=endpoint_url, region=region, profile=profile)
        if found.local:
            return found  # the file's region and profile speak of AWS
        return resolve(
            service,
            endpoint_url=endpoint_url,
            region=region or declared_region,
            profile=profile or declared_profile,
        )

    from orchgpu.deploy.aws.cloud import AwsCloud  # botocore: not for `--help`

    aws = AwsCloud(settings)
    try:
        found = settings("s3")
        require_cloud(found)
        yield OpenCloud(aws, found)
    finally:
        aws.close()


def _declared(document: Document | None) -> tuple[str | None, str | None]:
    """The region and profile that all functions of a file share."""
    functions = [f.function for f in document.functions.aws] if document is not None else []
    regions = dict.fromkeys(f.region for f in functions if f.region)
    profiles = dict.fromkeys(f.boto_profile for f in functions if f.boto_profile)
    for what, values in (("region", regions), ("boto_profile", profiles)):
        if len(values) > 1:
            raise invalid(f"one deploy, one {what}: the file names {', '.join(values)}")
    return next(iter(regions), None), next(iter(profiles), None)


def execute_shown(prepared: Prepared, cloud: OpenCloud, *, as_json: bool) -> None:
    def progress(number: int, count: int, step: Step) -> None:
        if not as_json:
            say(f"[{number}/{count}] {step.sentence()}")

    if not as_json:
        _show_notices(prepared)
    execute(prepared, cloud.aws, progress)
    if as_json:
        say_json(_json(prepared, cloud.where, applied=True))


def _show_drift(drift: tuple[Drift, ...]) -> None:
    for found in drift:
        say(f"{found.name}: changed since revision {found.revision}; to put it back:")
        for step in found.steps:
            say(f"  {step.sentence()}")


def _json(prepared: Prepared, where: str, *, applied: bool) -> dict[str, Any]:
    drift = [
        {
            "function": found.name,
            "revision": found.revision,
            "steps": Plan(steps=found.steps).as_json()["steps"],
        }
        for found in prepared.drift
    ]
    return {
        "drift": drift,
        "functions": list(prepared.names),
        "where": where,
        "applied": applied,
        "plan": prepared.plan.as_json(),
        "notes": [note_json(note) for note in prepared.notes],
    }


def _show_warnings(prepared: Prepared, file: Path) -> None:
    """What somebody should do something about: a plan that works needs no more words."""
    worth_doing = [note for note in prepared.notes if note.severity is not Severity.NOTE]
    show_notes(worth_doing, name_of(file))
    if prepared.rewritten:
        say(f"note: `orchgpu fdl migrate {file}` prints the file as it is read", err=True)


def _show_notices(prepared: Prepared) -> None:
    for notice in prepared.plan.notices:
        say(f"note: {notice}")
