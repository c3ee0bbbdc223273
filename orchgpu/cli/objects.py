"""`orchgpu put`, `get` and `ls`: objects of functions and of any bucket.

A place is `s3://bucket/prefix`, or the name of a function: its input to put to, its outputs to list
and to get from.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cli.screen import clock_time, json_option, say_json, say_table

if TYPE_CHECKING:
    from orchgpu.cli.cloud import JobCloud

SCHEME = "s3://"


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


def _outputs(cloud: JobCloud, place: str) -> list[At]:
    if place.startswith(SCHEME):
        return [parse_url(place)]
    outputs = cloud.function(place).outputs
    found = dict.fromkeys((one.bucket, one.prefix + "/" if one.prefix else "") for one in outputs)
    return [At(bucket=bucket, prefix=prefix) for bucket, prefix in found]


@click.command(short_help="Functions, or the objects of one.")
@click.argument("place", required=False)
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
        (f"{SCHEME}{at.bucket}/{e.key}", format_bytes(e.size), clock_time(e.modified_s))
        for at, e in found
    ]
    say_table(("OBJECT", "SIZE", "TIME"), rows, empty="no objects")


def _list_functions(cloud: JobCloud, *, as_json: bool) -> None:
    found = [
        {
            "function": f.name,
            "input": At(bucket=f.input_bucket, prefix=f.input_prefix).url,
            "outputs": [At(bucket=one.bucket, prefix=one.prefix).url for one in f.outputs],
        }
        for f in cloud.functions()
    ]
    if as_json:
        say_json({"functions": found})
        return
    rows = [(str(f["function"]), str(f["input"]), " ".join(f["outputs"])) for f in found]
    say_table(("FUNCTION", "INPUT", "OUTPUTS"), rows, empty="no function is deployed here")


@click.command(short_help="Upload files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...",
                type=click.Path(path_type=Path))  # fmt: skip
@click.argument("place")
@json_option
def put(files: tuple[Path, ...], place: str, as_json: bool) -> None:
    """Upload FILEs to PLACE: s3://bucket/prefix/, or a function's input, where each starts a job.

    \b
    Example:  orchgpu put sign.png s3://pictures/new/
    """
    from orchgpu.cli.cloud import JobCloud

    with closing(JobCloud()) as cloud:
        at = _input(cloud, place, files)
        for file in files:
            if not file.is_file():
                raise invalid(f"there is no file {str(file)!r}")
        folder = at.prefix if at.prefix.endswith("/") or not at.prefix else at.prefix + "/"
        keys = [folder + file.name for file in files]
        for file, key in zip(files, keys, strict=True):
            cloud.upload(file, at.bucket, key)
            if not as_json:
                click.echo(f"{SCHEME}{at.bucket}/{key}")
    if as_json:
        say_json({"objects": [{"bucket": at.bucket, "key": key} for key in keys]})


def _input(cloud: JobCloud, place: str, files: tuple[Path, ...]) -> At:
    if place.startswith(SCHEME):
        return parse_url(place)
    function = cloud.function(place)
    for file in files:
        cloud.check(function, file)
    return At(bucket=function.input_bucket, prefix=function.input_prefix)


@click.command(short_help="Fetch objects.")
@click.argument("place")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@json_option
def get(place: str, folder: Path | None, as_json: bool) -> None:
    """Fetch the object PLACE, or everything below it, into FOLDER. [default: here]

    PLACE is s3://bucket/key, s3://bucket/prefix/ or a function, whose outputs are fetched. Files
    keep their keys as paths; a file that is there is replaced once the new one is whole.

    \b
    Example:  orchgpu get text-recognition out
    """
    from orchgpu.cli.cloud import JobCloud

    folder = folder or Path()
    fetched: list[dict[str, str]] = []
    with closing(JobCloud()) as cloud:
        for at in _outputs(cloud, place):
            for entry in cloud.objects(at.bucket, at.prefix):
                if not _meant(at, entry.key):
                    continue
                file = file_below(folder, entry.key)
                cloud.download(at.bucket, entry.key, file)
                fetched.append({"bucket": at.bucket, "key": entry.key, "file": str(file)})
                if not as_json:
                    click.echo(str(file))
    if not fetched and place.startswith(SCHEME):
        raise AppError(ErrorCode.NOT_FOUND, f"there is no object {place}")
    if as_json:
        say_json({"objects": fetched})


def _meant(at: At, key: str) -> bool:
    """Below a folder everything but its markers; else the one object that is named."""
    if key.endswith("/"):
        return False
    return at.prefix in ("", key) or at.prefix.endswith("/") or key.startswith(at.prefix + "/")
