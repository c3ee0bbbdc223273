"""Shared by the commands of `ssgm`: the connection to ssgmd, and a request as options."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from corekit.aio.environment import budget_from_environment
from corekit.budget import Budget
from corekit.cli.screen import echo_json, json_option
from corekit.decode import encode
from corekit.errors import invalid
from corekit.local_system import local_scheduler
from corekit.units import parse_duration_s
from corekit.values import Value
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.pushes import OnPush
from gpu_scheduler.request_options import REQUEST_OPTIONS, RequestOption, parse_option, request_of

T = TypeVar("T")
Command = Callable[..., int | None]


class CommandContext(Value):
    """The connection of one command to ssgmd, and the form of its output."""

    scheduler: str  #: "host:port" of the socket endpoint, or several, separated by commas
    access: Access
    as_json: bool = False
    timeout_s: float | None = None  #: None: the time of a restart of ssgmd

    @property
    def budget(self) -> Budget:
        return budget_from_environment()

    def client(self, session: str | None = None, on_push: OnPush | None = None) -> SchedulerClient:
        """A client of this scheduler, to be entered. Raises INVALID for a malformed address."""
        return SchedulerClient(
            self.scheduler,
            session=session,
            budget=self.budget,
            on_push=on_push,
            deadline_s=self.timeout_s,
            access=self.access,
        )

    def ask(self, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
        """Send one request over a new connection. Raises the scheduler's error, or UNAVAILABLE."""

        async def asked() -> T:
            async with self.client() as client:
                return await question(client)

        return run(asked())

    def show(self, value: object, echo_text: Callable[[], None]) -> None:
        """Print the answer in one of its two forms."""
        if self.as_json:
            echo_json(encode(value))
        else:
            echo_text()


def run(work: Coroutine[object, None, T]) -> T:
    """Run the work; Ctrl-C and SIGTERM cancel it, then KeyboardInterrupt is raised."""

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _duration(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    del context, option
    return None if text is None else parse_duration_s(text)


_CONNECTION = (
    click.option(
        "--scheduler",
        envvar=["SSGM_SCHEDULER", "ORCHGPU_SCHEDULER"],
        metavar="HOST:PORT[,…]",
        help="Socket endpoint of ssgmd, and those of its standbys."
        "  [variable: SSGM_SCHEDULER; else the local system's]",
    ),
    click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with the key for ssgmd.  [variables: ORCHGPU_SCHEDULER_KEY_FILE, …_KEY]",
    ),
    click.option(
        "--ca",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="CA of ssgmd's certificate; enables TLS.  [variable: ORCHGPU_SCHEDULER_CA]",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        metavar="TIME",
        callback=_duration,
        help="Time limit for an answer.  [default: 15s, as for a restart of ssgmd]",
    ),
    json_option,
)


def connected(command: Command) -> Command:
    """The options of the connection; the command gets a `CommandContext` instead."""

    @functools.wraps(command)
    def call(
        *,
        scheduler: str | None,
        key_file: Path | None,
        ca: Path | None,
        timeout_s: float | None,
        as_json: bool,
        **options: object,
    ) -> int | None:
        scheduler = scheduler or local_scheduler()
        if not scheduler:
            text = "which scheduler? No local system runs here; give --scheduler HOST:PORT, or set"
            raise invalid(f"{text} SSGM_SCHEDULER")
        context = CommandContext(
            scheduler=scheduler,
            access=find_access(key_file=key_file, ca=ca),
            as_json=as_json,
            timeout_s=timeout_s,
        )
        return command(context, **options)

    return _with(call, _CONNECTION)


def requesting(command: Command) -> Command:
    """Every field of a request as an option; the command gets a `Request` instead."""

    @functools.wraps(command)
    def call(*arguments: object, **options: object) -> int | None:
        values = {word.key: options.pop(word.key) for word in REQUEST_OPTIONS}
        return command(*arguments, request=request_of(values), **options)

    return _with(call, [_option(word) for word in REQUEST_OPTIONS])


def _with(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _option(word: RequestOption) -> Callable[[Command], Command]:
    names = [name for name in (word.short, word.flag) if name]
    if word.switch:
        return click.option(*names, word.key, is_flag=True, default=None, help=word.help)
    return click.option(
        *names,
        word.key,
        metavar=word.metavar,
        multiple=word.many,
        default=None,
        callback=functools.partial(_read, word),
        help=_help(word),
    )


def _help(word: RequestOption) -> str:
    return word.help if "|" in word.metavar else f"{word.help}  [example: {word.example}]"


def _read(word: RequestOption, context: click.Context, option: click.Parameter, given: Any) -> Any:
    del context, option
    if word.many:
        return tuple(item for text in given for item in parse_option(word, text)) or None
    return None if given is None else parse_option(word, given)
