"""Fetch objects."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from corekit.cli.screen import echo_json, json_option
from corekit.cli.text import printable
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.batch import at_once_option, transfer
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.places import SCHEME, file_below, outputs_of


@click.command("get")
@click.argument("place", shell_complete=function_name)
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@at_once_option
@json_option
def command(place: str, folder: Path | None, at_once: int, as_json: bool) -> None:
    """Fetch the object PLACE, or everything below it, into FOLDER. [default: here]

    PLACE is s3://bucket/key, s3://bucket/prefix/ or a function, whose outputs are fetched. Files
    keep their keys as paths; an existing file is replaced once the new one is whole.

    \b
    Example:  orchgpu get text-recognition out
    """
    with closing(JobCloud(connections=at_once)) as cloud:
        wanted = _wanted(cloud, place, folder or Path())
        if not wanted:
            raise _no_object(cloud, place)

        def download(file: Path) -> Path:
            cloud.download(*wanted[file], file)
            return file

        transfer(download, list(wanted), at_once, lambda file: printable(str(file)), quiet=as_json)
    if as_json:
        shown = [{"bucket": b, "key": key, "file": str(file)} for file, (b, key) in wanted.items()]
        echo_json({"objects": shown})


def _no_object(cloud: JobCloud, place: str) -> AppError:
    if place.startswith(SCHEME):
        return AppError(ErrorCode.NOT_FOUND, f"there is no object {place}")
    places = " and ".join(at.url for at in outputs_of(cloud, place))
    why = f"no object below {places}" if places else "its definition names no location for them"
    return AppError(ErrorCode.NOT_FOUND, f"{place} has no outputs: {why}")


def _wanted(cloud: JobCloud, place: str, folder: Path) -> dict[Path, tuple[str, str]]:
    wanted: dict[Path, tuple[str, str]] = {}
    for at in outputs_of(cloud, place):
        for entry in cloud.objects(at.bucket, at.prefix):
            if not at.means(entry.key):
                continue
            source = (at.bucket, entry.key)
            other = wanted.setdefault(file_below(folder, entry.key), source)
            if other != source:
                raise invalid(f"{'/'.join(other)!r} and {'/'.join(source)!r} would become one file")
    return wanted
