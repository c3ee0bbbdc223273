"""The whole server: state, model, sandbox and the HTTP front, started and stopped in order."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from corekit.aio.clock import SystemClock
from corekit.aio.http_server import SILENT
from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.ids import IdSource
from corekit.values import Value
from local_cloud.model.arns import Account
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.environments import EnvironmentPool
from local_cloud.model.weather import NO_WEATHER, Weather
from local_cloud.process import CloudClock
from local_cloud.sandbox.batch_jobs import BatchProcesses
from local_cloud.sandbox.code import CodeStore
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.runner import Runner
from local_cloud.sandbox.runtime import Runtime
from local_cloud.sandbox.sandbox import Sandbox
from local_cloud.server.bodies import FileBodies
from local_cloud.server.context import Context
from local_cloud.server.functions.event_polling import EventPolling
from local_cloud.server.http import Router
from local_cloud.server.polling import Pollers
from local_cloud.server.restore import restore
from local_cloud.server.schedules import ScheduledCalls
from local_cloud.server.signatures import KeyPair, Verifier
from local_cloud.server.state_log import StateLog

#: An idle connection is kept this long; a frozen function's connections live as long as it does.
_KEEPALIVE_S = 900.0


class Options(Value):
    """The options of a server."""

    host: str = "127.0.0.1"
    port: int = 0  #: 0 = the last one of this state directory when it is free, else any
    state: Path
    region: str = "us-east-1"
    account: str = "000000000000"
    concurrency_max: int = 64  #: running environments of all functions, at most
    weather: Weather = NO_WEATHER
    allowed_hosts: tuple[str, ...] = ()  #: more names under which clients reach the server
    keys: KeyPair | None = None  #: must have signed each request; None = nothing is verified


@asynccontextmanager
async def running(options: Options) -> AsyncIterator[Context]:
    """A server that answers at `context.endpoint` until the block ends."""
    async with AsyncExitStack() as stack:
        state = StateLog(options.state, asyncio.get_running_loop().call_soon)
        stack.callback(state.close)
        context = _context(options, state, await stack.enter_async_context(Nursery("cloud")))
        front = Router(context)
        server = web.Server(
            front,
            handler_cancellation=True,
            access_log=None,
            logger=SILENT,
            keepalive_timeout=_KEEPALIVE_S,
            auto_decompress=False,  # a body is data here, with any Content-Encoding
        )
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        port = await _listen(runner, options, state)
        context.endpoint = f"http://{options.host}:{port}"
        sandbox = await stack.enter_async_context(_sandbox(options, context))
        code = CodeStore(options.state / "code")
        context.runner = Runner(context.cloud, context.clock, sandbox, code, context.nursery)
        stack.callback(context.runner.close)
        context.batch = _batch(options, context)
        context.batch.start()
        EventPolling(context).start()
        ScheduledCalls(context).start()
        front.open()
        stack.callback(context.pollers.close)
        yield context


def _context(options: Options, state: StateLog, nursery: Nursery) -> Context:
    clock = CloudClock(SystemClock())
    bodies = FileBodies(options.state / "bodies")
    pollers = Pollers(clock.now_s)
    cloud = Cloud(
        account=Account(id=options.account, region=options.region),
        ids=IdSource(secrets.token_hex(16)),
        bodies=bodies,
        recorder=state,
        on_message=pollers.touched,
        weather=options.weather,
    )
    cloud.functions.concurrency_max = options.concurrency_max
    restore(cloud, state, clock.now_s())
    bodies.remove_unused()
    return Context(
        cloud=cloud,
        clock=clock,
        state=state,
        bodies=bodies,
        pollers=pollers,
        logs=LogStore(),
        nursery=nursery,
        verifier=Verifier(_secrets(options.keys), clock.now_s),
        allowed_hosts=tuple(
            name.lower().rstrip(".") for name in (options.host, *options.allowed_hosts)
        ),
    )


def _secrets(keys: KeyPair | None) -> dict[str, str] | None:
    return None if keys is None else {keys.access_key: keys.secret_key}


def _sandbox(options: Options, context: Context) -> Sandbox:
    def revisions() -> dict[str, str]:
        return {f.name: f.revision for f in context.cloud.functions.all()}

    folder = options.state / "sandbox"
    return Sandbox(
        folder / "environments",
        runtime=Runtime(
            folder / "runtime",
            endpoint=context.endpoint,
            region=options.region,
            keys=(options.keys.access_key, options.keys.secret_key) if options.keys else None,
        ),
        pool=EnvironmentPool(concurrency_max=context.cloud.functions.concurrency_max),
        logs=context.logs,
        clock=SystemClock(),
        revisions=revisions,
    )


def _batch(options: Options, context: Context) -> BatchProcesses:
    keys = options.keys
    access_key, secret_key = (keys.access_key, keys.secret_key) if keys else ("test", "test")
    return BatchProcesses(
        context.cloud.batch,
        (options.state / "batch").resolve(),
        clock=context.clock,
        logs=context.logs,
        nursery=context.nursery,
        variables={"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key},
    )


async def _listen(runner: web.ServerRunner, options: Options, state: StateLog) -> int:
    """Bind; clients of an earlier run find the same port when it is still free."""
    last = state.get("port") if options.port == 0 else None
    for port in [last, 0] if isinstance(last, int) else [options.port]:
        site = web.TCPSite(runner, options.host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            if port == last:
                continue
            raise AppError(
                ErrorCode.UNAVAILABLE, f"cannot listen on {options.host}:{port}: {error.strerror}"
            ) from error
        break
    bound = int(runner.addresses[0][1])
    state.put("port", bound)
    return bound
