"""What the commands of `ssgm` share: the way to ssgmd, and the words of a request as options."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from corekit.aio.environment import budget_from_environment
from corekit.budget import Budget
from corekit.errors import invalid
from corekit.units import parse_duration_s
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.commands.terminal import Text, show
from gpu_scheduler.client.pushes import OnPush
from gpu_scheduler.request_options import REQUEST_OPTIONS, RequestOption, parse_option, request_of

T = TypeVar("T")
Command = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line to ssgmd of one command, and the form of its answer."""

    scheduler: str  #: "host:port" of the socket door
    access: Access
    as_json: bool = False
    timeout_s: float | None = None  #: None: as long as a restart of ssgmd may take

    @property
    def budget(self) -> Budget:
        return budget_from_environment()

    def client(self, session: str | None = None, on_push: OnPush | None = None) -> SchedulerClient:
        """A client of this scheduler, to be entered. Raises INVALID for what is no address."""
        return SchedulerClient(
            self.scheduler,
            session=session,
            budget=self.budget,
            on_push=on_push,
            deadline_s=self.timeout_s,
            access=self.access,
        )

    def ask(self, question: Callable[[SchedulerClient], Awaitable[T]]) -> T:
        """One connection, one question. Raises what the scheduler answers, or UNAVAILABLE."""

        async def asked() -> T:
            async with self.client() as client:
                return await question(client)

        return run(asked())

    def show(self, value: Any, text: Text) -> None:
        show(value, self.as_json, text)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Ctrl-C and SIGTERM cancel the work, which may still clean up; then KeyboardInterrupt."""

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
        metavar="HOST:PORT",
        help="Socket door of ssgmd.  [variable: SSGM_SCHEDULER]",
    ),
    click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Holds the key for ssgmd.  [variables: ORCHGPU_SCHEDULER_KEY_FILE, …_KEY]",
    ),
    click.option(
        "--ca",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Speak TLS and trust this authority.  [variable: ORCHGPU_SCHEDULER_CA]",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        metavar="TIME",
        callback=_duration,
        help="Of an answer.  [default: 15s, a restart of ssgmd]",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object, also for an error."),
)


def connected(command: Command) -> Command:
    """The options of the connection; the command gets a `Line` instead."""

    @functools.wraps(command)
    def call(
        *,
        scheduler: str | None,
        key_file: Path | None,
        ca: Path | None,
        timeout_s: float | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        if not scheduler:
            raise invalid("which scheduler? Give --scheduler HOST:PORT, or set SSGM_SCHEDULER")
        line = Line(
            scheduler=scheduler,
            access=find_access(key_file=key_file, ca=ca),
            as_json=as_json,
            timeout_s=timeout_s,
        )
        return command(line, **options)

    return _with(call, _CONNECTION)


def requesting(command: Command) -> Command:
    """Every word of a request as an option; the command gets a `Request` instead."""

    @functools.wraps(command)
    def call(*arguments: Any, **options: Any) -> Any:
        values = {word.key: options.pop(word.key) for word in REQUEST_OPTIONS}
        return command(*arguments, request=request_of(values), **options)

    return _with(call, [_option(word) for word in REQUEST_OPTIONS])


def _with(command: Command, options: Any) -> Command:
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
    """With an example, unless the metavar names every value."""
    return word.help if "|" in word.metavar else f"{word.help}  [as {word.example}]"


def _read(word: RequestOption, context: click.Context, option: click.Parameter, given: Any) -> Any:
    """Lists that were given in several flags are one list."""
    del context, option
    if word.many:
        return tuple(item for text in given for item in parse_option(word, text)) or None
    return None if given is None else parse_option(word, given)
