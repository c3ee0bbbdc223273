"""ssgmd without a process: the production machine, a journal in memory, mail for its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

from corekit.aio.clock import Clock
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, IdSource, SessionId
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Device
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol.changes import Entry, decode_entry, encode_entry
from gpu_scheduler.protocol.host import HostOp
from gpu_scheduler.protocol.ops import Op, answer_of
from simulator.faults.checkers import Checker

#: Takes a push; None: the connection is gone.
Mail = Callable[[Any], None]
AnswerT = TypeVar("AnswerT", bound=Value)


class Clocks(TypedDict):
    """The clocks of an event."""

    at_s: float
    wall_s: float


def _asked(session: SessionId, op: Op[Value], token: str, now: Clocks) -> on.Event:
    return on.Asked(session=session, reply_to=token, op=op, **now)


class SimScheduler:
    """A restartable scheduler: only the journal survives `kill`; the rest is rebuilt from it."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock,
        checker: Checker,
        seed: str,
        configured: Parameters,
        capacity: tuple[Device, ...] = (),
    ) -> None:
        self._capacity = capacity
        self._budget = budget
        self._configured = configured
        self._clock = clock
        self._checker = checker
        self._seed = seed
        self._journal: list[bytes] = []
        self._replies: dict[str, asyncio.Future[Value]] = {}
        self._asked = 0
        self.runs = 0
        self._wake: asyncio.TimerHandle | None = None
        self._machine: SchedulerMachine | None = None
        self.sessions: dict[SessionId, Mail] = {}
        self.hosts: dict[HostId, Mail] = {}
        self.waker: Callable[[do.Wake], None] | None = None  #: None: no owner may be away

    @property
    def up(self) -> bool:
        return self._machine is not None

    @property
    def machine(self) -> SchedulerMachine:
        assert self._machine is not None, "the scheduler is down"
        return self._machine

    def start(self) -> None:
        """Recover from the journal and begin a new epoch."""
        self.runs += 1
        ids = IdSource(f"{self._seed}/scheduler/{self.runs}")
        self._machine = SchedulerMachine(self._budget, ids, self._configured, installed_policies())
        for line in self._journal:
            self._machine.apply(decode_entry(line))
        moment = self.now()
        self.tell(on.EpochBegan(wakes=self.waker is not None, **moment))
        if self._capacity:
            self.tell(on.CapacityDeclared(devices=self._capacity, **moment))

    def kill(self) -> None:
        """`kill -9`: connections break, answers under way are lost, the journal stays."""
        self._machine = None
        if self._wake is not None:
            self._wake.cancel()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(AppError(ErrorCode.UNAVAILABLE, "the scheduler died"))
        self._replies.clear()
        for mail in [*self.sessions.values(), *self.hosts.values()]:
            mail(None)  # the connection is gone
        self.sessions.clear()
        self.hosts.clear()

    def now(self) -> Clocks:
        return {"at_s": self._clock.monotonic_s(), "wall_s": self._clock.wall_s()}

    async def ask(self, session: SessionId, op: Op[AnswerT]) -> AnswerT:
        """One op and its answer. Raises the AppError that the scheduler answers with."""
        answer = await self._answered(lambda token, now: _asked(session, op, token, now))
        assert isinstance(answer, answer_of(type(op))), answer
        return answer

    async def ask_as_host(self, host: HostId, op: HostOp) -> Any:
        """One op of a host and its answer, of the class that `protocol.host` names."""
        return await self._answered(
            lambda token, now: on.HostAsked(host=host, reply_to=token, op=op, **now)
        )

    async def _answered(self, event: Callable[[str, Clocks], on.Event]) -> Value:
        if self._machine is None:
            raise AppError(ErrorCode.UNAVAILABLE, "the scheduler is down")
        self._asked += 1
        token = f"r{self._asked}"
        future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        self._replies[token] = future
        self.tell(event(token, self.now()))
        return await future

    def tell(self, event: on.Event) -> None:
        """Decide, make durable, check every invariant, then act."""
        if self._machine is None:
            return
        try:
            decision = self._machine.handle(event)
        except Exception as error:
            raise self._checker.core_failed(event, error) from error
        entries: tuple[Entry, ...] = decision.changes
        self._journal.extend(encode_entry(entry) for entry in entries)
        self._checker.scheduler_decided(self._machine, event, entries)
        for action in decision.actions:
            self._act(action)

    def _act(self, action: do.Action) -> None:
        match action:
            case do.Reply():
                self._resolve(action.reply_to, action.answer)
            case do.ReplyError():
                details = dict(action.details)
                self._resolve(action.reply_to, AppError(action.code, action.message, **details))
            case do.PushToSession():
                self._post(self.sessions.get(action.session), action.push)
            case do.PushToHost():
                self._post(self.hosts.get(action.host), action.push)
            case do.Wake() if self.waker is not None:
                self.waker(action)
            case do.WakeAt():
                self._wake_at(action.at_s)

    def _resolve(self, token: str, outcome: Value | AppError) -> None:
        future = self._replies.pop(token, None)
        if future is None or future.done():
            return
        if isinstance(outcome, AppError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    @staticmethod
    def _post(mail: Mail | None, item: Value) -> None:
        if mail is not None:
            mail(item)

    def _wake_at(self, at_s: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        pause_s = max(0.0, at_s - self._clock.monotonic_s())
        self._wake = asyncio.get_running_loop().call_later(
            pause_s, lambda: self.tell(on.Ticked(**self.now()))
        )
