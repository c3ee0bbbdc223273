"""Revisions of a deployed function, newest first."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from corekit.cli.screen import echo_json, echo_table
from corekit.cli.table import Column
from corekit.cli.times import shown_time, utc_option
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.options import cloud_options
from orchgpu.cloud_services import Address
from orchgpu.deploy.revisions import Revision

REVISIONS = (
    Column(name="REVISION"),
    Column(name="DEPLOYED", drop_order=2),
    Column(name="CODE", drop_order=1),
    Column(name="CHANGES", shrink_order=1, width_min=16),
)


@click.command("history")
@click.argument("name", shell_complete=function_name)
@cloud_options
@utc_option
def command(name: str, address: Address, as_json: bool) -> None:
    """Revisions of a deployed function, newest first: time, code, changes.

    \b
    Example:  orchgpu history blast
    """
    with open_target(address) as target:
        kept = target.cloud.revisions(name)
        if not kept:
            message = f"nothing named {name!r} is deployed here ({target.where})"
            raise AppError(ErrorCode.NOT_FOUND, message)
    newest_first = kept[::-1]
    if as_json:
        echo_json({"function": name, "revisions": [_json(revision) for revision in newest_first]})
        return
    rows = [
        (
            str(r.number),
            shown_time(r.deployed_at_s),
            r.package[:12] or "image",
            r.changes,
        )
        for r in newest_first
    ]
    echo_table(REVISIONS, rows)


def _json(revision: Revision) -> dict[str, object]:
    deployed_at = datetime.fromtimestamp(revision.deployed_at_s, UTC)
    return {
        "number": revision.number,
        "deployed_at": deployed_at.strftime("%Y-%m-%d %H:%M:%SZ"),
        "package_sha256": revision.package,
        "digest": revision.digest,
        "note": revision.note,
        "changes": list(revision.summary),
    }
