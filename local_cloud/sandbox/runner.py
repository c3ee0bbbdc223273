"""Connects the model of Lambda with the sandbox: the code of functions, and what runs when."""

from __future__ import annotations

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.function import DestinationRecord, Invocation, Outcome
from local_cloud.model.functions.functions import LambdaFunction
from local_cloud.process import CloudClock
from local_cloud.sandbox.code import CodeStore
from local_cloud.sandbox.dispatcher import Deliver, Dispatcher
from local_cloud.sandbox.image_package import RUNNER_HANDLER
from local_cloud.sandbox.runtime import RunSpec, log_group
from local_cloud.sandbox.runtime_api import error_payload
from local_cloud.sandbox.sandbox import Sandbox


class Runner:
    """Runs the functions of one cloud."""

    def __init__(
        self,
        cloud: Cloud,
        clock: CloudClock,
        sandbox: Sandbox,
        code: CodeStore,
        nursery: Nursery,
        deliver: Deliver | None = None,
    ) -> None:
        """`deliver`: sends the records of destinations; None = the cloud itself does."""
        self.sandbox = sandbox
        self.code = code
        self._cloud = cloud
        self._clock = clock
        self._dispatcher = Dispatcher(
            nursery, clock.now_s, self._run_event, deliver or self._deliver
        )
        sandbox.on_free = self._dispatcher.slot_free
        cloud.functions.note = self._note
        cloud.on_invocation = self.pump
        for function in cloud.functions.all():
            self.settings_changed(function)

    def pump(self, function: LambdaFunction) -> None:
        """An event was accepted for the function, or its settings changed."""
        self._dispatcher.pump(function)

    def settings_changed(self, function: LambdaFunction) -> None:
        """Take over its reserved concurrency."""
        if function.reserved is None:
            self.sandbox.pool.reserved.pop(function.name, None)
        else:
            self.sandbox.pool.reserved[function.name] = function.reserved
        self._dispatcher.limit_changed(function)

    async def invoke(
        self, function: LambdaFunction, request_id: str, payload: str
    ) -> tuple[Outcome, str]:
        """One run, now; the outcome and the end of its log."""
        now = self._cloud.functions.running(self._clock.now_s(), function)
        settings = now.settings
        try:
            code = self.code.folder(settings.code_sha256)
        except (AppError, OSError) as error:
            payload = error_payload("Sandbox.NoCode", f"the code of {function.name}: {error}")
            return Outcome(payload=payload, error="Unhandled"), ""
        spec = RunSpec(
            name=function.name,
            arn=function.arn,
            revision=now.revision,
            handler=settings.handler or RUNNER_HANDLER,
            code=code,
            timeout_s=settings.timeout_s,
            memory_mib=settings.memory_mib,
            variables=settings.variables,
            named_group=settings.log_group,
        )
        return await self.sandbox.invoke(spec, request_id, payload)

    def close(self) -> None:
        """Start nothing more."""
        self._dispatcher.close()

    async def _run_event(self, function: LambdaFunction, invocation: Invocation) -> Outcome:
        outcome, _ = await self.invoke(function, invocation.request_id, invocation.payload)
        return outcome

    def _note(self, function: LambdaFunction, invocation: Invocation, condition: str) -> None:
        group = function.settings.log_group or log_group(function.name)
        self.sandbox.note(function.name, group, invocation, condition)

    async def _deliver(self, record: DestinationRecord) -> None:
        self._cloud.deliver(self._clock.now_s(), record)
