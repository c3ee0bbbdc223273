"""Upload files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from corekit.cli.screen import echo, echo_json, json_option
from corekit.cli.text import printable
from corekit.errors import invalid
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.batch import at_once_option, transfer
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import DirectFunction, JobCloud
from orchgpu.jobs.files import check_file
from orchgpu.jobs.places import SCHEME, At, parse_url, refuse_same_names

#: Objects that are listed; JSON has all of them.
LISTED_MAX = 20


@click.command("put")
@click.argument("given", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.argument("place", shell_complete=function_name)
@at_once_option
@json_option
def command(given: tuple[str, ...], place: str, at_once: int, as_json: bool) -> None:
    """Upload FILEs to PLACE: s3://bucket/prefix/, or a function's input, where each starts a job.

    Prints each object, with the id of its job where it has one, in the order of FILEs; of many only
    the first ones, and a summary.

    \b
    Example:  orchgpu put sign.png s3://pictures/new/
    """
    with closing(JobCloud(connections=at_once)) as cloud:
        files = _local_files(given)
        function = _queued(cloud, place)
        at = _input(cloud, place, function, files)
        for file in files:
            check_file(file)
        refuse_same_names(file.name for file in files)
        folder = at.prefix if at.prefix.endswith("/") or not at.prefix else at.prefix + "/"

        def upload(file: Path) -> tuple[str, str | None]:
            """The object's key, and the id of its job."""
            if function is not None:
                submitted = cloud.submit(function, file, now_s=time.time())
                return submitted.key, submitted.job_ids[0]
            cloud.services.upload(file, at.bucket, folder + file.name)
            return folder + file.name, None

        stored = transfer(upload, files, at_once, None, quiet=as_json)
    if as_json:
        objects = [{"bucket": at.bucket, "key": key, "job_id": job} for key, job in stored]
        echo_json({"objects": objects})
    else:
        _echo_stored(At(bucket=at.bucket).url, stored, function)


def _echo_stored(
    url: str, stored: Sequence[tuple[str, str | None]], function: Function | None
) -> None:
    listed = stored if len(stored) <= LISTED_MAX + 1 else stored[:LISTED_MAX]
    for key, job in listed:
        echo(url + printable(key), "" if job is None else f"  {job}")
    if left := len(stored) - len(listed):
        echo(f"and {left} more")
    if len(stored) > 1:
        follow = f"; follow them: orchgpu jobs --function {function.name}" if function else ""
        jobs = f", {len(stored)} jobs" if function else ""
        echo(f"{len(stored)} files uploaded{jobs}{follow}")


def _queued(cloud: JobCloud, place: str) -> Function | None:
    if place.startswith(SCHEME) or cloud.direct(place) is not None:
        return None
    return cloud.function(place)


def _local_files(given: tuple[str, ...]) -> tuple[Path, ...]:
    for one in given:
        if one.startswith(SCHEME):
            raise invalid(
                f"{one!r} is an object already: `orchgpu run FUNCTION {one}` runs a function on it,"
                f" `orchgpu get {one}` fetches it"
            )
    return tuple(map(Path, given))


def _input(cloud: JobCloud, place: str, function: Function | None, files: tuple[Path, ...]) -> At:
    if place.startswith(SCHEME):
        return parse_url(place)
    if function is None:
        direct = cloud.direct(place)
        assert direct is not None, "as `_queued` found"
        return _input_of_direct(direct, files)
    for file in files:
        cloud.check(function, file)
    return At(bucket=function.input_bucket, prefix=function.input_prefix)


def _input_of_direct(function: DirectFunction, files: tuple[Path, ...]) -> At:
    """The one location whose objects start it. Raises INVALID for several, and for other files."""
    if len(function.places) != 1:
        several = " or ".join(function.places) or "nothing"
        raise invalid(f"{function.name} is started by objects in {several}: name a location")
    for file in files:
        if not function.takes(file):
            raise invalid(f"{file.name}: {function.name} does not take it and would ignore it")
    (place,) = function.places
    return parse_url(place)
