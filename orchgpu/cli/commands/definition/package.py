"""Write the package of a function, for an image."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import click

from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import AppError, ErrorCode
from fdl.model import Function
from fdl.plan.groups import deployed
from fdl.plan.placeholders import has_placeholders
from orchgpu.cli.completing import definition
from orchgpu.cli.options import outside_option
from orchgpu.deploy.files import read_document
from orchgpu.deploy.package import build


@click.command("package")
@click.argument("file", type=click.Path(path_type=Path), shell_complete=definition)
@click.argument("name", required=False)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="A new folder, or a file ending in .zip.",
)
@outside_option
@json_option
def command(file: Path, name: str | None, out: Path, allow_outside: bool, as_json: bool) -> None:
    """Write the package that a deploy sends for a function of FILE, for an image with the runner.

    \b
    Example:  orchgpu package fdl.yaml blast --out task
              # Dockerfile: FROM public.ecr.aws/lambda/python:3.12
              #             COPY task /var/task
              #             CMD ["lambda_functions.gpu_runner.handler.handle"]
    """
    function = _function(file, name)
    data = build(function, file.parent, outside=allow_outside).data
    try:
        if out.suffix == ".zip":
            out.write_bytes(data)
        else:
            _unpack(data, out)
    except OSError as error:
        raise AppError(ErrorCode.INVALID, f"cannot write {out}: {error.strerror}") from error
    if as_json:
        echo_json({"function": function.name, "written": str(out)})
    else:
        echo(str(out))


def _function(file: Path, name: str | None) -> Function:
    functions = {function.name: function for function in deployed(read_document(file))}
    if name is None and len(functions) == 1:
        (name,) = functions
    if name not in functions:
        problem = f"has no function {name!r}" if name else "has several functions: name one"
        code = ErrorCode.NOT_FOUND if name else ErrorCode.INVALID
        raise AppError(code, f"{file} {problem} ({', '.join(functions)})")
    function = functions[name]
    storages = (s for step in function.steps for s in (*step.user_input, *step.function.output))
    if any(has_placeholders(storage.path) for storage in storages):
        message = "the package of a group names buckets: write them without placeholders"
        raise AppError(ErrorCode.INVALID, message)
    return function


def _unpack(data: bytes, folder: Path) -> None:
    """Extract our own zip, whose names are plain and relative."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            path = Path(archive.extract(info, folder))
            path.chmod((info.external_attr >> 16) & 0o777)
