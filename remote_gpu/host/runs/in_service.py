"""`python3 -m remote_gpu.host.runs.in_service`: a container of Knative or OpenFaaS.

It takes the event of a staged envelope (a CloudEvent in the binary form), reads what to run in the
record of the envelope's function, and has `in_batch` run it as a process. So a request names no
code. The keys of the store are this container's, as a role's are in Lambda: the runner uses them,
and takes them from the user's code, unless that is root here.

The request stays open until the run has ended: both platforms count open requests, and may end a
container without any. The answer begins when the process has started: a line of JSON, an empty one
every `BEAT_S`, and the status of the process in the last.

One run at a time: other events are refused (429), for their sender repeats them, and the event of
the run itself joins it. The claim of the attempt decides between two containers. After SIGTERM no
event is taken, and the program ends with its run; one that the platform kills ends its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import click
from aiohttp import web

from contract.keys import StagingKey, parse_staging_key
from contract.timing import CAP_SLACK_S
from corekit.aio.http_server import listening
from corekit.aio.process import guarded, stop_signal
from corekit.aio.supervise import Nursery
from corekit.errors import EXIT_STATUS, HTTP_STATUS, AppError, ErrorCode, invalid
from corekit.tokens import read_token
from remote_gpu.host.runs.in_batch import PACKAGES_VARIABLE
from remote_gpu.host.runs.launch import store_client
from remote_gpu.isolation.privileges import make_undumpable
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.runs import (
    BATCH_VARIABLE,
    RUN,
    SERVICE_EVENT,
    SERVICES_TOKEN_VARIABLE,
    BatchOrder,
)
from remote_gpu.worker.programs.warden import adopt_orphans, end_children

#: The bucket with the records of functions and their packages.
STATE_VARIABLE = "ORCHGPU_STATE_BUCKET"
#: Proxies and load balancers cut connections that are silent for a minute.
BEAT_S = 10.0


class Run:
    """One event and its process."""

    def __init__(self, event: str) -> None:
        loop = asyncio.get_running_loop()
        self.event = event
        self.taken: asyncio.Future[None] = loop.create_future()  #: or the AppError why not
        self.ended: asyncio.Future[int] = loop.create_future()  #: the status of the process


class Container:
    """The program: events come in, one run at a time."""

    def __init__(self, state_bucket: str, token: str, folder: Path, nursery: Nursery) -> None:
        """`token`: that requests must have; "" = none."""
        self._state_bucket = state_bucket
        self._token = token
        self._folder = folder
        self._nursery = nursery
        self._run: Run | None = None
        self._stopping = False

    def application(self) -> web.Application:
        app = web.Application(client_max_size=RUN.meta_bytes_max)
        app.router.add_post("/{path:.*}", self.receive)
        app.router.add_get("/{path:.*}", _health)
        return app

    async def stop(self) -> None:
        """Take no more events; returns when the run has ended."""
        self._stopping = True
        if self._run is not None:
            await asyncio.wait([self._run.ended])

    async def receive(self, request: web.Request) -> web.StreamResponse:
        try:
            run = self._run_of(await self._event(request))
            await asyncio.shield(run.taken)
        except AppError as error:
            headers = {"retry-after": "1"} if error.retryable else {}
            return web.json_response(
                {"message": error.message}, status=HTTP_STATUS[error.code], headers=headers
            )
        answer = web.StreamResponse(status=202, headers={"content-type": "application/json"})
        with contextlib.suppress(ConnectionResetError):  # the run continues
            await answer.prepare(request)
            await answer.write(b'{"state": "RUNNING"}\n')
            while not (await asyncio.wait([run.ended], timeout=BEAT_S))[0]:
                await answer.write(b"\n")
            await answer.write(json.dumps({"exit_status": run.ended.result()}).encode() + b"\n")
        return answer

    async def _event(self, request: web.Request) -> str:
        """The data of a request. Raises DENIED, INVALID."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        sent = given.encode("utf-8", "surrogateescape")
        if self._token and not hmac.compare_digest(sent, self._token.encode()):
            raise AppError(ErrorCode.DENIED, "the token is missing or wrong")
        if request.headers.get("ce-type") != SERVICE_EVENT:
            raise invalid(f"not a CloudEvent of the type {SERVICE_EVENT}, in the binary form")
        try:
            return await request.text()
        except (ValueError, LookupError):
            raise invalid("the data of the event are not text") from None

    def _run_of(self, event: str) -> Run:
        """The run of an event, which begins here unless it is under way. Raises EXHAUSTED."""
        if self._run is not None and self._run.event == event:
            return self._run
        if self._run is not None or self._stopping:
            why = "ends" if self._stopping else "has a run"
            raise AppError(ErrorCode.EXHAUSTED, f"this container {why}; send the event again")
        self._run = Run(event)
        self._nursery.start(self._perform(self._run), "run")
        return self._run

    async def _perform(self, run: Run) -> None:
        status = 1
        try:
            order = await asyncio.to_thread(order_of, self._state_bucket, run.event)
            status = await self._process(run, order)
        except AppError as error:
            if not run.taken.done():
                run.taken.set_exception(error)
        finally:
            if not run.taken.done():
                text = "the run could not be started; the container's log has the reason"
                run.taken.set_exception(AppError(ErrorCode.INTERNAL, text))
            self._run = None
            run.ended.set_result(status)

    async def _process(self, run: Run, order: BatchOrder) -> int:
        """The exit status of the process; all that it started and its files are gone."""
        folder = tempfile.mkdtemp(prefix="run-", dir=self._folder)
        packages = self._folder / "packages"
        await asyncio.to_thread(_keep_only, order.package.sha256, packages)
        variables = {
            BATCH_VARIABLE: order.to_json(),
            PACKAGES_VARIABLE: str(packages),
            "TMPDIR": folder,
        }
        command = [sys.executable, "-P", "-m", "remote_gpu.host.runs.in_batch"]
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, signal.SIGKILL),
                env={**os.environ, **variables},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            run.taken.set_result(None)
            try:
                async with asyncio.timeout(order.timeout_s + CAP_SLACK_S):
                    await process.wait()
            except TimeoutError:
                pass  # as Lambda ends a function: the runner writes nothing more
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            status = await process.wait()
            await asyncio.to_thread(end_children)
            return status
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _keep_only(sha256: str, packages: Path) -> None:
    """Remove the packages of other versions, and what a killed process has left of one."""
    for one in packages.glob("*"):
        if one.name != sha256:
            shutil.rmtree(one, ignore_errors=True)


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"ok": True})


def order_of(state_bucket: str, event: str) -> BatchOrder:
    """The order of an event, by the record of its function.

    Raises INVALID for another event, NOT_FOUND for a function without a service, UNAVAILABLE.
    """
    bucket, staging = _envelope_of(event)
    record = _record(state_bucket, staging.function)
    host = record.get("host") or {}
    if not host.get("service") or record.get("intermediate_bucket") != bucket:
        text = f"no service is deployed as {staging.function} with envelopes in {bucket}"
        raise AppError(ErrorCode.NOT_FOUND, text)
    order = {
        "function": staging.function,
        "job": staging.job,
        "attempt": staging.n,
        "event": event,
        "timeout_s": record.get("timeout_s"),
        "memory_mib": record.get("memory_mib"),
        "package": {
            "bucket": host.get("package_bucket"),
            "key": host.get("package_key"),
            "sha256": record.get("package_sha256"),
        },
        "variables": host.get("process"),
    }
    try:
        return BatchOrder.from_json(json.dumps(order))
    except WireError as error:
        raise invalid(f"the record of {staging.function} names no run: {error}") from None


def _envelope_of(event: str) -> tuple[str, StagingKey]:
    """The bucket and the key of the envelope. Raises INVALID."""
    try:
        (record,) = json.loads(event)["Records"]
        bucket, key = record["s3"]["bucket"]["name"], record["s3"]["object"]["key"]
        staging = parse_staging_key(unquote_plus(key))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        staging = None
    if staging is None or not isinstance(bucket, str):
        raise invalid("the data of the event do not name one envelope of an attempt")
    return bucket, staging


def _record(state_bucket: str, function: str) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError

    where = f"s3://{state_bucket}/functions/{function}.json"
    try:
        with contextlib.closing(store_client()) as s3:
            body = s3.get_object(Bucket=state_bucket, Key=f"functions/{function}.json")["Body"]
            record = json.loads(body.read())
    except (BotoCoreError, ClientError) as error:
        known = getattr(error, "response", {}).get("Error", {}).get("Code") != "NoSuchKey"
        code = ErrorCode.UNAVAILABLE if known else ErrorCode.NOT_FOUND
        raise AppError(code, f"{where} cannot be read: {error}") from None
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise invalid(f"{where} is not the record of a function")
    return record


async def serve(address: str, state_bucket: str, token: str) -> None:
    """Take events until SIGTERM, and the end of the run. Raises INVALID, UNAVAILABLE."""
    stopped = stop_signal()
    make_undumpable()  # the user's code, of the same user, would read the keys of the store
    adopt_orphans()  # process 1 of a container has to, or they stay as zombies
    with tempfile.TemporaryDirectory(prefix="orchgpu-") as name:
        async with Nursery("service") as nursery:
            container = Container(state_bucket, token, Path(name), nursery)
            async with listening(container.application(), address, "events") as bound:
                click.echo(f"events of functions are taken at {bound}")
                await stopped.wait()
                await container.stop()


@click.command()
@click.option("--listen", default="", help="ADDR:PORT. [default: 0.0.0.0:$PORT, or port 8080]")
def main(listen: str) -> None:
    """Run the functions whose events this container receives."""
    try:
        if not (state_bucket := os.environ.get(STATE_VARIABLE)):
            raise invalid(f"set {STATE_VARIABLE}: `orchgpu plan` names the bucket")
        address = listen or f"0.0.0.0:{os.environ.get('PORT', '8080')}"
        asyncio.run(serve(address, state_bucket, _token()))
    except AppError as error:
        click.echo(error.message, err=True)
        sys.exit(EXIT_STATUS[error.code])


def _token() -> str:
    file = os.environ.get(SERVICES_TOKEN_VARIABLE)
    return read_token(file, SERVICES_TOKEN_VARIABLE) if file else ""


if __name__ == "__main__":
    main()
