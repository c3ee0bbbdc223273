"""`orchgpu history | rollback | package`: what was deployed when, back to it, and what travels."""

from __future__ import annotations

import io
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import click

from corekit.errors import AppError, ErrorCode
from fdl.model import Function
from fdl.plan.groups import deployed
from orchgpu.adapters.aws.endpoints import guard_real_aws
from orchgpu.cli.definition.deploy import cloud_options, deploy, execute_shown, open_cloud, plan, rm
from orchgpu.cli.definition.findings import reported
from orchgpu.cli.terminal.completing import definition
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import json_option, say, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.cli.terminal.times import shown_time, utc_option
from orchgpu.deploy.deployment import prepare_rollback
from orchgpu.deploy.files import read_document
from orchgpu.deploy.package import build
from orchgpu.deploy.revisions import Revision

REVISIONS = (
    Column(name="REVISION"),
    Column(name="DEPLOYED", leaves=2),
    Column(name="CODE", leaves=1),
    Column(name="CHANGES", gives=1, least=16),
)


@click.command(short_help="Revisions of a deployed function, newest first.")
@click.argument("name", shell_complete=function_name)
@cloud_options
@utc_option
@reported
def history(
    name: str, endpoint_url: str | None, region: str | None, profile: str | None, as_json: bool
) -> None:
    """Revisions of a deployed function, newest first: when, which code, what changed.

    \b
    Example:  orchgpu history blast
    """
    with open_cloud(endpoint_url, region, profile, None) as cloud:
        kept = cloud.aws.revisions(name)
        if not kept:
            message = f"nothing named {name!r} is deployed here ({cloud.where})"
            raise AppError(ErrorCode.NOT_FOUND, message)
    newest_first = kept[::-1]
    if as_json:
        say_json({"function": name, "revisions": [_json(revision) for revision in newest_first]})
        return
    rows = [
        (str(r.number), shown_time(r.deployed_at_s), r.package[:12] or "image", r.note or _what(r))
        for r in newest_first
    ]
    say_table(REVISIONS, rows, "")


def _when(revision: Revision) -> str:
    return datetime.fromtimestamp(revision.deployed_at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _what(revision: Revision) -> str:
    """One line: what was created is a count, what changed is named."""
    created = sum(line.startswith("+") for line in revision.summary)
    changed = [line.removeprefix("~ ") for line in revision.summary if line.startswith("~")]
    return "; ".join([*changed, *([f"{created} created"] if created else [])])


def _json(revision: Revision) -> dict[str, object]:
    return {
        "number": revision.number,
        "deployed_at": _when(revision),
        "package_sha256": revision.package,
        "digest": revision.digest,
        "note": revision.note,
        "changes": list(revision.summary),
    }


@click.command(short_help="Put an earlier revision of a function back.")
@click.argument("name", shell_complete=function_name)
@click.argument("revision", type=click.IntRange(min=1), required=False)
@cloud_options
@click.option("--yes-real-aws", is_flag=True, help="Change resources on real AWS.")
@reported
def rollback(
    name: str,
    revision: int | None,
    endpoint_url: str | None,
    region: str | None,
    profile: str | None,
    as_json: bool,
    yes_real_aws: bool,
) -> None:
    """Put an earlier REVISION of a function back: the one before the newest, unless named.

    Code, settings, queues and triggers become what they were; data stays. That is a new revision.

    \b
    Example:  orchgpu rollback blast 3
    """
    with open_cloud(endpoint_url, region, profile, None) as cloud:
        guard_real_aws(cloud.settings, allowed=yes_real_aws)
        prepared = prepare_rollback(name, revision, cloud.aws)
        execute_shown(prepared, cloud, as_json=as_json)
        if not as_json:
            done = "done" if not prepared.plan.empty else "that is what stands"
            say(f"{name}: {prepared.note}: {done} ({cloud.where})")


@click.command(short_help="Write what a deploy would send, for an image.")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@click.argument("name", required=False)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A new folder, or a file ending in .zip.",
)
@json_option
@reported
def package(file: Path, name: str | None, out: Path, as_json: bool) -> None:
    """Write what a deploy would send for a function of FILE: for an image with the runner in it.

    \b
    Example:  orchgpu package fdl.yaml blast --out task
              # Dockerfile: FROM public.ecr.aws/lambda/python:3.12
              #             COPY task /var/task
              #             CMD ["lambda_functions.gpu_runner.handler.handle"]
    """
    function = _function(file, name)
    data = build(function, file.parent).data
    try:
        if out.suffix == ".zip":
            out.write_bytes(data)
        else:
            _unpack(data, out)
    except OSError as error:
        raise AppError(ErrorCode.INVALID, f"cannot write {out}: {error.strerror}") from error
    if as_json:
        say_json({"function": function.name, "written": str(out)})
    else:
        say(str(out))


def _function(file: Path, name: str | None) -> Function:
    functions = {function.name: function for function in deployed(read_document(file))}
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    if name not in functions:
        what = f"has no function {name!r}" if name else "has several functions: say which"
        code = ErrorCode.NOT_FOUND if name else ErrorCode.INVALID
        raise AppError(code, f"{file} {what} ({', '.join(functions)})")
    return functions[name]


def _unpack(data: bytes, folder: Path) -> None:
    """The zip is ours: its names are plain and relative."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            path = Path(archive.extract(info, folder))
            path.chmod((info.external_attr >> 16) & 0o777)


#: What `orchgpu` adds to its own commands.
COMMANDS: list[click.Command] = [deploy, plan, rm, history, rollback, package]
