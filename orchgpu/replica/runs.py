"""The runs of workflows on one replica: messages in, folds, and what becomes of the messages.

Nothing of a run is held here but messages in hand: each makes this replica read the run's objects,
fold them and perform what comes next. A message about an end of a job is deleted then; the message
of the input stays, hidden, until the run has ended: it comes again and again, so that a run whose
replica died continues. Messages of a run that arrive during a fold share the next one.

The replica that ended a job of a step folds the run itself, before it deletes the job's message. A
message about the end is sent when that failed; when the replica dies, the job's message comes
again, and leads to a fold again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from contract.parameters import seen_by_jobs
from contract.result import Result
from contract.run import run_id
from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from orchgpu.core.actions import AdvanceRun
from orchgpu.core.dead_letters import dead_letter_body
from orchgpu.core.function import Function
from orchgpu.core.routing import Ignored, InputEvent, Rejected, Several
from orchgpu.core.runs.actions import EndRun, StartStep
from orchgpu.core.runs.facts import Facts
from orchgpu.core.runs.machine import next_actions, waived_steps
from orchgpu.core.runs.messages import Advance, advance_body, classify_run
from orchgpu.core.runs.records import Frozen
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import (
    NO_BODY,
    JobQueue,
    Message,
    NoticeSender,
    ObjectStore,
    Scheduler,
    Tolerating,
)
from orchgpu.replica.actions.run_facts import RunFacts
from orchgpu.replica.actions.runs import RunPerformer
from orchgpu.replica.notices import Counted, Notices

logger = logging.getLogger(__name__)

#: Messages in hand of one workflow; a fold lasts some calls, so more would only be hidden.
IN_HAND_MAX = 200
#: Folds in a row for the same messages: every one of them has made progress.
FOLDS_MAX = 200
#: A call failed, or a run cannot be folded now: its messages come again after so much of
#: `visibility_s`.
RETRY_SHARE = 0.1
#: Hidden messages of inputs whose handles are kept, to delete them when their runs end.
TOKENS_MAX = 10_000
#: As after other messages: the calls of what is in hand come before the next receive.
AFTER_MESSAGES_S = 0.02


class _Held(Value):
    """A message in hand, or the end of a job of this replica, which has none."""

    receipt_handle: str = ""
    token: bool = False  #: the message of the input: it stays until the run has ended
    fresh: bool = False  #: of a run that was not known before
    failed: str = ""  #: a job that ended without success
    result: Result | None = None  #: of a job that succeeded
    folded: asyncio.Future[bool] | None = None  #: whether the fold succeeded, for who waits for it


@dataclass
class _InHand:
    """The messages of a run; the fold that is under way saw none of them."""

    messages: list[_Held] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Runs:
    """The runs of all workflows that this replica serves."""

    def __init__(
        self,
        *,
        queue: JobQueue,
        store: ObjectStore,
        scheduler: Scheduler,
        clock: Clock,
        budget: Budget,
        nursery: Nursery,
        functions: Callable[[], Mapping[str, Function]],
        finished: Callable[[EndRun], None],
        notified: Counted,
        sender: NoticeSender | None = None,
    ) -> None:
        self._queue = queue
        self._store = store
        self._clock = clock
        self._budget = budget
        self._nursery = nursery
        self._finished = finished
        #: of jobs as well
        self.notices = Notices(
            queue=queue,
            store=store,
            sender=sender,
            clock=clock,
            budget=budget,
            nursery=nursery,
            counted=notified,
        )
        self._facts = RunFacts(store, clock, functions)
        self._performer = RunPerformer(
            queue=queue,
            store=store,
            scheduler=scheduler,
            clock=clock,
            functions=functions,
            ended=self._ended,
        )
        self._workflows: dict[str, Workflow] = {}
        self._in_hand: dict[str, _InHand] = {}
        self._hidden_tokens: dict[str, list[str]] = {}  #: by run, the oldest first: handles
        self._room = asyncio.Event()

    # ------------------------------------------------------------------ messages in

    def load(self, workflows: Mapping[str, Workflow]) -> list[asyncio.Task[None]]:
        """Serve these workflows from now on; the loops of those that were not served before."""
        before, self._workflows = self._workflows, dict(workflows)
        begun = []
        for name, workflow in workflows.items():
            known = before.get(name)
            if known == workflow:
                self._workflows[name] = known  # its loop continues
                continue
            logger.info("serving workflow %s", name, extra={"event": "workflow_loaded"})
            receiving = partial(self._receive, workflow)
            begun.append(self._nursery.start_loop(receiving, f"runs/{name}"))
        return begun

    async def _receive(self, workflow: Workflow) -> None:
        """As long as it is served; the last receive ends by itself, with its messages handled."""
        while self._workflows.get(workflow.name) is workflow:
            await self.wait_for_room()
            try:
                messages = await self._queue.receive(
                    workflow.queue_url,
                    count_max=self.room(),
                    wait_s=self._budget.receive_wait_s,
                    visibility_s=self._budget.visibility_s,
                )
            except AppError as error:
                logger.warning("%s", error, extra={"event": "receive_failed"})
                await asyncio.sleep(self._budget.reconnect_s_max / 5)
                continue
            serving = self._workflows.get(workflow.name, workflow)  # deployed during the receive
            for message in messages:
                self.take(serving, message)
            await asyncio.sleep(AFTER_MESSAGES_S)

    def room(self) -> int:
        """The number of messages that can be taken now."""
        return IN_HAND_MAX - sum(len(one.messages) for one in self._in_hand.values())

    async def wait_for_room(self) -> None:
        while self.room() <= 0:
            self._room.clear()
            await self._room.wait()

    def take(self, workflow: Workflow, message: Message) -> None:
        """Handle one message of a workflow's queue."""
        if self.notices.take(workflow, message):
            return
        verdict = classify_run(message.body, workflow)
        if isinstance(verdict, Advance):
            failed = verdict.job if verdict.failed else ""
            token = bool(verdict.token)
            held = _Held(receipt_handle=message.receipt_handle, token=token, failed=failed)
            self._wake(workflow, verdict.run, held)
            return
        work = self._other(workflow, message, verdict)
        self._nursery.start(self._tried(workflow, [message.receipt_handle], work), "run message")

    async def advance(self, word: AdvanceRun) -> None:
        """Let the run of an ended job continue: fold it here, or send the word to its queue.

        Returns when the one or the other is done. Raises AppError when neither is.
        """
        workflow = self._workflows.get(word.workflow)
        if workflow is None:
            return  # it was undeployed
        verdict = classify_run(word.body, workflow)
        assert isinstance(verdict, Advance), "the word of a job names its run"
        folded = asyncio.get_running_loop().create_future()
        known = None if verdict.failed else word.result
        held = _Held(failed=verdict.job if verdict.failed else "", result=known, folded=folded)
        self._wake(workflow, verdict.run, held)
        if not await folded:
            await self._queue.send(workflow.queue_url, [word.body])

    async def _other(
        self,
        workflow: Workflow,
        message: Message,
        verdict: InputEvent | Ignored | Rejected | Several,
    ) -> None:
        url, handle = workflow.queue_url, message.receipt_handle
        match verdict:
            case InputEvent():
                await self._begin(workflow, message, verdict)
                return
            case Several():
                await self._queue.send(url, verdict.bodies)
            case Rejected():
                body = dead_letter_body(
                    message.body, None, verdict.reason, verdict.detail, self._clock.wall_s()
                )
                await self._queue.send(workflow.dead_letter_url, [body])
        await self._queue.delete(url, [handle])

    async def _begin(self, workflow: Workflow, message: Message, source: InputEvent) -> None:
        """Freeze the run of an input. Without a version it is named as jobs are: by one HEAD."""
        url, handle = workflow.queue_url, message.receipt_handle
        version = source.version_id
        if version is None:
            named = await self._named(source)
            if named is None:
                logger.warning(
                    "s3://%s/%s: the input was deleted or overwritten before its run began",
                    source.bucket,
                    source.key,
                    extra={"event": "run_input_gone", "workflow": workflow.name},
                )
                await self._queue.delete(url, [handle])
                return
            source, version = named
        run = run_id(source.bucket, source.key, version, workflow.name)
        fresh = await self._freeze(workflow, run, source)
        if source.version_id is None:
            # the input may be overwritten while the run lives: from now on its name is its token
            await self._queue.send(url, [advance_body(run, token=True)])
            await self._queue.delete(url, [handle])
            return
        self._wake(workflow, run, _Held(receipt_handle=handle, token=True, fresh=fresh))

    async def _named(self, source: InputEvent) -> tuple[InputEvent, str] | None:
        try:
            found = await self._store.head(source.bucket, source.key)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        if source.etag and found.etag != source.etag:
            return None  # the newer upload has an event of its own
        source = replace(source, etag=found.etag, version_id=found.version_id)
        return source, found.version_id or f"{found.etag}@{found.last_modified}"

    async def _freeze(self, workflow: Workflow, run: str, source: InputEvent) -> bool:
        now_s = self._clock.wall_s()
        stored_at_s = min(now_s, _time_of(source) or now_s)
        frozen = Frozen(
            run=run,
            workflow=workflow,
            input=replace(source, dead_at_s=None),
            stored_at_s=stored_at_s,
            frozen_at_s=now_s,
            metadata=await self._metadata(source),
        )
        return await self._performer.freeze(workflow, frozen)

    async def _metadata(self, source: InputEvent) -> dict[str, str]:
        """The metadata that the jobs of a run see; an input that is gone is for the first job."""
        with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.CONFLICT):
            found = await self._store.get(
                source.bucket,
                source.key,
                version_id=source.version_id,
                if_match=source.etag if source.version_id is None else None,
                bytes_max=NO_BODY,
            )
            return seen_by_jobs(found.metadata)
        return {}

    # ------------------------------------------------------------------ folds

    def _wake(self, workflow: Workflow, run: str, held: _Held) -> None:
        in_hand = self._in_hand.setdefault(run, _InHand())
        in_hand.messages.append(held)
        if in_hand.task is None:
            work = self._advance_all(workflow, run, in_hand)
            in_hand.task = self._nursery.start(work, f"run/{run}")

    async def _advance_all(self, workflow: Workflow, run: str, in_hand: _InHand) -> None:
        """Fold until no message is left; there is no await between the last look and the end."""
        messages: list[_Held] = []
        try:
            while in_hand.messages:
                messages, in_hand.messages = in_hand.messages, []
                handles = [one.receipt_handle for one in messages if one.receipt_handle]
                succeeded = await self._tried(
                    workflow, handles, self._advance(workflow, run, messages)
                )
                _answer(messages, folded=succeeded)
                self._room.set()
        finally:
            _answer([*messages, *in_hand.messages], folded=False)
            in_hand.task = None
            self._in_hand.pop(run, None)

    async def _advance(self, workflow: Workflow, run: str, messages: Sequence[_Held]) -> None:
        hints = [message.failed for message in messages if message.failed]
        known = [message.result for message in messages if message.result is not None]
        patrol = any(message.token and not message.fresh for message in messages)
        facts = await self._folded(workflow, run, hints, known, patrol=patrol)
        over = facts is None or facts.stands
        tokens = [] if over else [one.receipt_handle for one in messages if one.token]
        done = [one.receipt_handle for one in messages if over or not one.token]
        done = [receipt_handle for receipt_handle in done if receipt_handle]
        if tokens and facts is not None:
            hidden_s = self._patrol_s(facts)
            await self._queue.set_visibility(workflow.queue_url, tokens, hidden_s)
            self._keep(run, tokens)
        if over:  # the hidden one would come again at its next look, and counts until then
            done += self._hidden_tokens.pop(run, [])
        if done:
            await self._queue.delete(workflow.queue_url, done)

    def _keep(self, run: str, tokens: list[str]) -> None:
        """Keep the handles; a run that another replica ends leaves its own until they are many."""
        self._hidden_tokens.pop(run, None)
        self._hidden_tokens[run] = tokens
        if len(self._hidden_tokens) > TOKENS_MAX:
            del self._hidden_tokens[next(iter(self._hidden_tokens))]

    async def _folded(
        self,
        workflow: Workflow,
        run: str,
        hints: Sequence[str],
        known: Sequence[Result],
        *,
        patrol: bool,
    ) -> Facts | None:
        """Fold and act until nothing comes next; the last facts."""
        for fold in range(FOLDS_MAX):
            found = await self._facts.fold(workflow, run, hints, known)
            if found is None:
                logger.warning(
                    "a message names run %s, which was never started",
                    run,
                    extra={"event": "run_unknown", "workflow": workflow.name},
                )
                return None
            facts, state = found
            if fold == 0:  # a message about the end of a step shows what it lets be skipped
                for waived in waived_steps(facts, state):
                    await self._performer.perform(workflow, waived)
            actions = next_actions(facts, state, patrol=patrol)
            patrol = False
            if not actions:
                return facts
            for action in actions:
                await self._performer.perform(workflow, action)
            last = actions[-1]
            if isinstance(last, EndRun):  # a retry since has a token of its own
                return replace(facts, ended=last.result)
            if all(isinstance(action, StartStep) for action in actions):
                return facts  # each job that was sent leads to a fold when it ends
        raise AppError(ErrorCode.UNAVAILABLE, f"run {run} still changes after every look at it")

    def _patrol_s(self, facts: Facts) -> float:
        """The time until the token is visible again: at the next look, or the deadline."""
        patrol_s = self._budget.reconcile_every_s
        deadline_at_s = facts.deadline_at_s()
        if deadline_at_s is None:
            return patrol_s
        return max(0.0, min(patrol_s, deadline_at_s - self._clock.wall_s()))

    async def _tried(
        self, workflow: Workflow, handles: Sequence[str], work: Awaitable[None]
    ) -> bool:
        """Whether the work succeeded. Else its messages come again soon, at any replica."""
        try:
            await work
            return True
        except AppError as error:
            logger.warning("%s", error, extra={"event": "run_failed", "workflow": workflow.name})
        except Exception:
            logger.exception("a run", extra={"event": "fault", "workflow": workflow.name})
        pause_s = RETRY_SHARE * self._budget.visibility_s
        try:
            await self._queue.set_visibility(workflow.queue_url, handles, pause_s)
        except AppError as error:  # they come again when their visibility ends
            logger.warning("%s", error, extra={"event": "run_failed", "workflow": workflow.name})
        return False

    def _ended(self, action: EndRun) -> None:
        result = action.result
        self._facts.forget(action.run)
        logger.info(
            "%s of %s: %s",
            action.run,
            result.workflow,
            result.state,
            extra={
                "event": "run_finished",
                "run": action.run,
                "workflow": result.workflow,
                "outcome": result.state.value,
                "reason": result.reason,
                "seconds": round(result.ended_at_s - result.started_at_s, 3),
            },
        )
        self._finished(action)


def _time_of(source: InputEvent) -> float | None:
    try:
        return datetime.fromisoformat(source.event_time).timestamp()
    except (ValueError, OverflowError):
        return None


def _answer(messages: Sequence[_Held], *, folded: bool) -> None:
    """Let the replica's own jobs go on that wait for a fold; repeated, it changes nothing."""
    for message in messages:
        if message.folded is not None and not message.folded.done():
            message.folded.set_result(folded)
