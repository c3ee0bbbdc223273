"""`orchgpu put`, `get` and `ls`: objects of functions and of any bucket.

A place is `s3://bucket/prefix`, or the name of a function: its input to put to, its outputs to list
and to get from.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.terminal.completing import function as function_name
from orchgpu.cli.terminal.screen import json_option, say_json, say_table
from orchgpu.cli.terminal.table import Column
from orchgpu.cli.terminal.text import printable
from orchgpu.cli.terminal.times import shown_time, utc_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.objects.direct import Plain

SCHEME = "s3://"

OBJECTS = (
    Column(name="OBJECT", gives=1, least=24, keep="both"),
    Column(name="SIZE", leaves=2),
    Column(name="TIME", leaves=1),
)
FUNCTIONS = (
    Column(name="FUNCTION", gives=3, least=12),
    Column(name="INPUT", gives=2, least=20, keep="both", leaves=2),
    Column(name="OUTPUTS", gives=1, least=20, keep="both", leaves=1),
)

#: Uploads and downloads at once: more does not help one machine's network.
AT_ONCE = 8
at_once_option = click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=AT_ONCE,
    show_default=True,
    help="Uploads and downloads at the same time.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A part of a bucket."""

    bucket: str
    prefix: str = ""  #: a key begins so

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def parse_url(text: str) -> At:
    """`s3://bucket[/prefix]`. Raises INVALID."""
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not bucket:
        raise invalid(f"{text!r} is no place; write s3://bucket/prefix or a function's name")
    return At(bucket=bucket, prefix=prefix)


def file_below(folder: Path, key: str) -> Path:
    """Where an object goes: below the folder, whatever its key says."""
    inside = [part for part in key.split("/") if part not in ("", ".", "..")]
    if not inside:
        raise invalid(f"the key {key!r} names no file")
    return folder.joinpath(*inside)


def refuse_twins(names: Iterable[str]) -> None:
    """Raise INVALID for two files that would become one object."""
    for name, times in Counter(names).items():
        if times > 1:
            raise invalid(f"{times} of the files are named {name!r}: each would replace the other")


def _outputs(cloud: JobCloud, place: str) -> list[At]:
    if place.startswith(SCHEME):
        return [parse_url(place)]
    from orchgpu.cli.objects.direct import outputs, plain

    alone = plain(cloud, place)
    if alone is not None:
        places = outputs(cloud, alone)
    else:
        places = [(one.bucket, one.prefix) for one in cloud.function(place).outputs]
    found = dict.fromkeys((bucket, prefix + "/" if prefix else "") for bucket, prefix in places)
    return [At(bucket=bucket, prefix=prefix) for bucket, prefix in found]


@click.command(short_help="Functions, or the objects of one.")
@click.argument("place", required=False, shell_complete=function_name)
@utc_option
@json_option
def ls(place: str | None, as_json: bool) -> None:
    """Objects below PLACE: s3://bucket/prefix, or a function, whose outputs are listed.

    Without PLACE the deployed functions with their inputs and outputs.

    \b
    Example:  orchgpu ls text-recognition
    """
    from corekit.units import format_bytes
    from orchgpu.cli.cloud import JobCloud

    with closing(JobCloud()) as cloud:
        if place is None:
            _list_functions(cloud, as_json=as_json)
            return
        found = [
            (at, entry)
            for at in _outputs(cloud, place)
            for entry in cloud.objects(at.bucket, at.prefix)
        ]
    if as_json:
        objects = [
            {"bucket": at.bucket, "key": e.key, "size": e.size, "modified_s": e.modified_s}
            for at, e in found
        ]
        say_json({"objects": objects})
        return
    rows = [
        (f"{SCHEME}{at.bucket}/{e.key}", format_bytes(e.size), shown_time(e.modified_s))
        for at, e in found
    ]
    say_table(OBJECTS, rows, empty="no objects")


def _list_functions(cloud: JobCloud, *, as_json: bool) -> None:
    from orchgpu.cli.objects.direct import outputs, plains

    found: list[dict[str, Any]] = [
        {
            "function": f.name,
            "input": At(bucket=f.input_bucket, prefix=f.input_prefix).url,
            "outputs": [At(bucket=one.bucket, prefix=one.prefix).url for one in f.outputs],
        }
        for f in cloud.functions()
    ]
    found += [
        {
            "function": f.name,
            "input": " ".join(f.places),
            "outputs": [At(bucket=bucket, prefix=key).url for bucket, key in outputs(cloud, f)],
        }
        for f in plains(cloud)
    ]
    found.sort(key=lambda one: str(one["function"]))
    if as_json:
        say_json({"functions": found})
        return
    rows = [(str(f["function"]), str(f["input"]), " ".join(f["outputs"])) for f in found]
    say_table(FUNCTIONS, rows, empty="no function is deployed here")


@click.command(short_help="Upload files.")
@click.argument("given", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.argument("place", shell_complete=function_name)
@at_once_option
@json_option
def put(given: tuple[str, ...], place: str, at_once: int, as_json: bool) -> None:
    """Upload FILEs to PLACE: s3://bucket/prefix/, or a function's input, where each starts a job.

    \b
    Example:  orchgpu put sign.png s3://pictures/new/
    """
    from orchgpu.cli.cloud import JobCloud, check_file
    from orchgpu.cli.jobs.batch import transfer

    with closing(JobCloud(connections=at_once)) as cloud:
        files = _local_files(given)
        at = _input(cloud, place, files)
        for file in files:
            check_file(file)
        refuse_twins(file.name for file in files)
        folder = at.prefix if at.prefix.endswith("/") or not at.prefix else at.prefix + "/"

        def upload(file: Path) -> str:
            cloud.upload(file, at.bucket, folder + file.name)
            return folder + file.name

        url = At(bucket=at.bucket).url
        keys = transfer(upload, files, at_once, lambda key: url + printable(key), quiet=as_json)
    if as_json:
        say_json({"objects": [{"bucket": at.bucket, "key": key} for key in keys]})


def _local_files(given: tuple[str, ...]) -> tuple[Path, ...]:
    """Raises INVALID for places: `put` brings what is here there."""
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
    from orchgpu.cli.objects.direct import plain

    alone = plain(cloud, place)
    if alone is not None:
        return _input_of_plain(alone, files)
    function = cloud.function(place)
    for file in files:
        cloud.check(function, file)
    return At(bucket=function.input_bucket, prefix=function.input_prefix)


def _input_of_plain(function: Plain, files: tuple[Path, ...]) -> At:
    """The one place whose objects start it. Raises INVALID for several, and for other files."""
    if len(function.places) != 1:
        several = " or ".join(function.places) or "nothing"
        raise invalid(f"{function.name} is started by objects in {several}: name a place")
    for file in files:
        if not function.takes(file):
            raise invalid(f"{file.name}: {function.name} does not take it and would ignore it")
    (place,) = function.places
    return parse_url(place)


@click.command(short_help="Fetch objects.")
@click.argument("place", shell_complete=function_name)
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@at_once_option
@json_option
def get(place: str, folder: Path | None, at_once: int, as_json: bool) -> None:
    """Fetch the object PLACE, or everything below it, into FOLDER. [default: here]

    PLACE is s3://bucket/key, s3://bucket/prefix/ or a function, whose outputs are fetched. Files
    keep their keys as paths; a file that is there is replaced once the new one is whole.

    \b
    Example:  orchgpu get text-recognition out
    """
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.batch import transfer

    with closing(JobCloud(connections=at_once)) as cloud:
        wanted = _wanted(cloud, place, folder or Path())
        if not wanted:
            raise _nothing(cloud, place)

        def download(file: Path) -> Path:
            cloud.download(*wanted[file], file)
            return file

        transfer(download, list(wanted), at_once, lambda file: printable(str(file)), quiet=as_json)
    if as_json:
        told = [{"bucket": b, "key": key, "file": str(file)} for file, (b, key) in wanted.items()]
        say_json({"objects": told})


def _nothing(cloud: JobCloud, place: str) -> AppError:
    if place.startswith(SCHEME):
        return AppError(ErrorCode.NOT_FOUND, f"there is no object {place}")
    places = " and ".join(at.url for at in _outputs(cloud, place))
    where = f"nothing lies below {places}" if places else "its definition names no place for them"
    return AppError(ErrorCode.NOT_FOUND, f"{place} has no outputs: {where}")


def _wanted(cloud: JobCloud, place: str, folder: Path) -> dict[Path, tuple[str, str]]:
    """Where each object goes. Raises INVALID for two that would be one file."""
    wanted: dict[Path, tuple[str, str]] = {}
    for at in _outputs(cloud, place):
        for entry in cloud.objects(at.bucket, at.prefix):
            if not is_meant(at, entry.key):
                continue
            source = (at.bucket, entry.key)
            other = wanted.setdefault(file_below(folder, entry.key), source)
            if other != source:
                raise invalid(f"{'/'.join(other)!r} and {'/'.join(source)!r} would be one file")
    return wanted


def is_meant(at: At, key: str) -> bool:
    """Below a folder everything but its markers; else the one object that is named."""
    if key.endswith("/"):
        return False
    return at.prefix in ("", key) or at.prefix.endswith("/") or key.startswith(at.prefix + "/")
