"""Call a function over HTTP, and print its output."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corekit.cli.screen import echo, echo_json, json_option
from corekit.cli.text import printable
from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.units import parse_duration_s
from corekit.values import Value
from gpu_scheduler.client.access import find_access
from orchgpu.cli.jobs.report import ending_status
from orchgpu.cli.options import key_file_option
from orchgpu.jobs.files import check_file
from orchgpu.jobs.summary import shown_reason

if TYPE_CHECKING:
    from orchgpu.cli.jobs.http_client import HttpClient
    from orchgpu.web.api.model import Job


@click.command("invoke")
@click.argument("function")
@click.argument("file", metavar="FILE|-", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--url",
    metavar="URL",
    help="The console to ask. [default: $ORCHGPU_URL, else the local system's]",
)
@key_file_option
@click.option("--name", help="Name of the input. [default: that of FILE]")
@click.option("--stream", is_flag=True, help="Print the lines of the job to standard error.")
@click.option(
    "--call",
    "calls",
    is_flag=True,
    help="Call the function's endpoint and print the answer as it comes; nothing is stored.",
)
@click.option("--wait", metavar="DURATION", help="Stop waiting after this, as in 90s or 5m.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Of this request: repeated with the same one, it is the same job. [default: random]",
)
@click.option(
    "--set",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the job: variable ORCHGPU_PARAM_NAME of its code; repeatable.",
)
@json_option
def command(
    function: str,
    file: Path,
    url: str | None,
    key_file: Path | None,
    name: str | None,
    stream: bool,
    calls: bool,
    wait: str | None,
    idempotency_key: str | None,
    parameters: tuple[str, ...],
    as_json: bool,
) -> int:
    """Send FILE, or standard input, to FUNCTION over HTTP and print the job's output.

    It needs a key of the scheduler and no access to the cloud; `orchgpu run` needs both, and takes
    many files. Of several outputs, or with --json, the paths are printed in place of the content.
    Ends with 1 when the job, or the call, did not succeed, with 9 after --wait; a job continues
    then.

    \b
    Example:  orchgpu invoke text-recognition sign.png --stream
              orchgpu invoke summarise - < notes.txt
              orchgpu invoke summarise notes.txt --call
    """
    from orchgpu.cli.jobs.http_client import connected, console_url  # aiohttp takes 0.2 s

    asked = _Asked(
        function=function,
        name=name or ("" if str(file) == "-" else file.name),
        key=idempotency_key or secrets.token_hex(16),
        parameters=parameters,
        stream=stream,
        as_json=as_json,
    )
    within_s = None if wait is None else parse_duration_s(wait)
    if calls and (stream or idempotency_key or as_json):
        text = "--call has neither lines nor a record of a job"
        raise click.UsageError(f"{text}: leave out --stream, --idempotency-key, --json")
    there, access = console_url(url), find_access(key_file=key_file)

    async def invoked(source: Path) -> int:
        async with connected(there, access.current_key) as client:
            if calls:
                return await _called(client, content, asked, within_s)
            return await _invoked(client, source, asked, within_s)

    with _file(file) as source:
        content = source.read_bytes() if calls else b""
        return asyncio.run(invoked(source))


class _Asked(Value):
    """The options about one request."""

    function: str
    name: str
    key: str
    parameters: tuple[str, ...]
    stream: bool
    as_json: bool


@contextmanager
def _file(given: Path) -> Iterator[Path]:
    """The input as a file that can be sent again; standard input is copied into one."""
    if str(given) != "-":
        check_file(given)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="orchgpu-invoke-") as folder:
        copied = Path(folder) / "stdin"
        with copied.open("wb") as to:
            shutil.copyfileobj(sys.stdin.buffer, to)
        yield copied


async def _invoked(client: HttpClient, source: Path, asked: _Asked, within_s: float | None) -> int:
    job = await client.submit(asked.function, source, asked.name, asked.key, asked.parameters)
    if not asked.as_json:
        echo(f"{job.id}  {printable(job.input or '')}", err=True)
    try:
        async with asyncio.timeout(within_s):
            await _followed(client, job.id, asked)
    except TimeoutError:
        text = f"{job.id} is not over after {within_s:g} s and continues: "
        text += f"`orchgpu invoke --idempotency-key {asked.key}` with the same input waits again"
        raise AppError(ErrorCode.TIMEOUT, text, job=job.id) from None
    job = await client.job(job.id)
    await _echo(client, job, asked)
    return 0 if job.state == "SUCCEEDED" else ending_status([job.reason or ""])


async def _called(client: HttpClient, content: bytes, asked: _Asked, within_s: float | None) -> int:
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    async for piece in client.call(asked.function, content, asked.name):
                        sys.stdout.buffer.write(piece)
                        sys.stdout.buffer.flush()
                    return 0
                except AppError as error:
                    if "retry_in_s" not in error.details:  # else nothing was called yet
                        raise
                    echo(printable(error.message), err=True)
                    await asyncio.sleep(float(error.details["retry_in_s"]))
    except TimeoutError:
        text = f"{asked.function} has not answered after {within_s:g} s: whether the call was made "
        raise AppError(ErrorCode.TIMEOUT, f"{text}is not known") from None


async def _followed(client: HttpClient, job: str, asked: _Asked) -> None:
    async with aclosing(client.events(job)) as events:
        async for event in events:
            if asked.as_json:
                continue
            if event.name == "state":
                reason = shown_reason(event.data.get("reason"))
                why = event.data.get("waits") or event.data.get("detail") or ""
                words = (str(event.data.get("state")), reason, printable(str(why)))
                echo("  ".join(word for word in words if word), err=True)
            elif event.name == "line" and asked.stream:
                line = f"{event.data.get('stream')}: {event.data.get('text')}"
                echo(printable(line), err=True)


async def _echo(client: HttpClient, job: Job, asked: _Asked) -> None:
    if asked.as_json:
        echo_json(encode(job))
    elif len(job.outputs) == 1:
        async for piece in client.content(job.outputs[0]):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        for one in job.outputs:
            echo(f"{one.link}  {one.bytes} bytes  {printable(one.url)}")
