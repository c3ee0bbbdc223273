"""Upload files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from corekit.cli.screen import echo_json, json_option
from corekit.cli.text import printable
from corekit.errors import invalid
from orchgpu.cli.completing import function as function_name
from orchgpu.cli.jobs.batch import transfer
from orchgpu.cli.objects.places import SCHEME, At, at_once_option, parse_url, refuse_same_names
from orchgpu.jobs.cloud import JobCloud, check_file
from orchgpu.jobs.direct import DirectFunction


@click.command("put")
@click.argument("given", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.argument("place", shell_complete=function_name)
@at_once_option
@json_option
def command(given: tuple[str, ...], place: str, at_once: int, as_json: bool) -> None:
    """Upload FILEs to PLACE: s3://bucket/prefix/, or a function's input, where each starts a job.

    \b
    Example:  orchgpu put sign.png s3://pictures/new/
    """
    with closing(JobCloud(connections=at_once)) as cloud:
        files = _local_files(given)
        at = _input(cloud, place, files)
        for file in files:
            check_file(file)
        refuse_same_names(file.name for file in files)
        folder = at.prefix if at.prefix.endswith("/") or not at.prefix else at.prefix + "/"

        def upload(file: Path) -> str:
            cloud.services.upload(file, at.bucket, folder + file.name)
            return folder + file.name

        url = At(bucket=at.bucket).url
        keys = transfer(upload, files, at_once, lambda key: url + printable(key), quiet=as_json)
    if as_json:
        echo_json({"objects": [{"bucket": at.bucket, "key": key} for key in keys]})


def _local_files(given: tuple[str, ...]) -> tuple[Path, ...]:
    """The local files. Raises INVALID for objects."""
    for one in given:
        if one.startswith(SCHEME):
            raise invalid(
                f"{one!r} is an object already: `orchgpu run FUNCTION {one}` runs a function on it,"
                f" `orchgpu get {one}` fetches it"
            )
    return tuple(map(Path, given))


def _input(cloud: JobCloud, place: str, files: tuple[Path, ...]) -> At:
    if place.startswith(SCHEME):
        return parse_url(place)
    direct = cloud.direct(place)
    if direct is not None:
        return _input_of_direct(direct, files)
    function = cloud.function(place)
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
