"""The Lambda control plane's state: functions, their policies, their event configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corekit.decode import decode, encode
from corekit.ids import IdSource
from corekit.values import Value, replace
from local_cloud.model.arns import Account, function_name, new_uuid
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.functions.environments import CONCURRENCY_QUOTA, unreserved_min
from local_cloud.model.functions.function import Invocation, InvocationQueue, InvokeConfig
from local_cloud.model.functions.states import FunctionStates
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder, part
from local_cloud.model.roles import Roles
from local_cloud.model.weather import AccountConcurrency, Draws, Propagation, refusal

TAGS_MAX = 50  #: of one resource
#: Settings whose change Lambda checks with the role.
_USED_BY_ROLE = ("Role", "VpcConfig", "Environment")
_TAG = r"[\w .:/=+\-@]"


class FunctionSettings(Value):
    """The settings of CreateFunction and UpdateFunction…; those that act here are properties."""

    name: str
    given: Mapping[str, Any] = {}  #: by AWS's names, as they came; most are only shown again
    image_uri: str = ""  #: empty for a zip function
    code_sha256: str = ""  #: base64, as AWS shows it; empty = no code that could run here
    code_bytes: int = 0

    @property
    def role(self) -> str:
        return str(self.given.get("Role", ""))

    @property
    def handler(self) -> str:
        """`module.function`; of an image its command, empty for that of the image itself."""
        command = self.given.get("ImageConfig", {}).get("Command")
        return str(command[0] if command else self.given.get("Handler", ""))

    @property
    def timeout_s(self) -> int:
        return int(self.given.get("Timeout", 3))

    @property
    def memory_mib(self) -> int:
        return int(self.given.get("MemorySize", 128))

    @property
    def variables(self) -> Mapping[str, str]:
        variables: Mapping[str, str] = self.given.get("Environment", {}).get("Variables", {})
        return variables

    @property
    def log_group(self) -> str:
        """Empty = /aws/lambda/<name>."""
        return str(self.given.get("LoggingConfig", {}).get("LogGroup", ""))

    @property
    def in_vpc(self) -> bool:
        return bool(self.given.get("VpcConfig", {}).get("SubnetIds"))


@dataclass(slots=True, kw_only=True)
class LambdaFunction:
    """One function, its policy, tags and invocations."""

    settings: FunctionSettings
    arn: str
    revision: str  #: changes with every change of settings or code
    modified_at_s: float
    invocations: InvocationQueue
    tags: dict[str, str] = field(default_factory=dict)
    statements: list[dict[str, object]] = field(default_factory=list)  #: of its resource policy
    configured: bool = False  #: PutFunctionEventInvokeConfig was called
    reserved: int | None = None  #: reserved concurrency

    @property
    def in_vpc(self) -> bool:
        return self.settings.in_vpc

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def policy(self) -> str:
        """The resource policy as JSON text, empty without statements."""
        return policy_text(self.statements)


class _Recorded(Value):
    settings: FunctionSettings
    revision: str
    modified_at_s: float
    tags: Mapping[str, str]
    statements: tuple[Mapping[str, Any], ...]
    configured: bool
    invoke_config: InvokeConfig
    reserved: int | None


class Running(Value):
    """The settings and the revision that an invocation runs."""

    settings: FunctionSettings
    revision: str


def policy_text(statements: Sequence[Mapping[str, object]]) -> str:
    """A resource policy as JSON text, empty without statements."""
    if not statements:
        return ""
    document = {"Version": "2012-10-17", "Id": "default", "Statement": list(statements)}
    return json.dumps(document, separators=(",", ":"))


@dataclass(slots=True)
class Functions:
    """Functions by name."""

    account: Account = field(default_factory=Account)
    ids: IdSource = field(default_factory=lambda: IdSource("functions"))
    recorder: Recorder = field(default_factory=NullRecorder)
    draws: Draws = field(default_factory=Draws)
    roles: Roles | None = None
    concurrency_max: int = CONCURRENCY_QUOTA  #: of the account: runs of all functions at a time
    #: called with why an event does not run, or not any more
    note: Callable[[LambdaFunction, Invocation, str], None] = lambda _function, _event, _why: None
    states: FunctionStates[Running] = field(init=False)
    permissions: Propagation[str] = field(init=False)
    concurrency: AccountConcurrency = field(init=False)
    _functions: dict[str, LambdaFunction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = FunctionStates(self.draws)
        self.permissions = Propagation(self.draws, "permission unknown")
        self.concurrency = AccountConcurrency(self.draws)

    def create(
        self, now_s: float, settings: FunctionSettings, tags: Mapping[str, str] | None = None
    ) -> LambdaFunction:
        """Make a function. Raises ResourceConflictException for a name that exists."""
        if settings.name in self._functions:
            raise refused("ResourceConflictException", f"Function already exist: {settings.name}")
        _check(settings)
        _check_tags(tags or {})
        self.draws.check("change throttled")
        self._check_role(now_s, settings)
        arn = self.account.function_arn(settings.name)
        made = LambdaFunction(
            settings=settings,
            arn=arn,
            revision=new_uuid(self.ids, "revision"),
            modified_at_s=now_s,
            invocations=self._queue(settings.name, InvokeConfig()),
            tags=dict(tags or {}),
        )
        self._functions[settings.name] = made
        self.states.created(now_s, settings.name, in_vpc=made.in_vpc)
        self.save(made)
        return made

    def update(
        self, now_s: float, name: str, given: Mapping[str, Any] | None = None, **code: Any
    ) -> LambdaFunction:
        """Change given settings, and the code's fields of FunctionSettings.

        Raises ResourceNotFoundException.
        """
        function = self.get(name)
        settings = replace(
            function.settings, given={**function.settings.given, **(given or {})}, **code
        )
        _check(settings)
        self.draws.check("change throttled")
        self.states.check_change(now_s, function.name, function.arn)
        if any(
            settings.given.get(key) != function.settings.given.get(key) for key in _USED_BY_ROLE
        ):
            self._check_role(now_s, settings)
        before = Running(settings=function.settings, revision=function.revision)
        self.states.updated(now_s, function.name, before, in_vpc=settings.in_vpc)
        function.settings = settings
        function.revision = new_uuid(self.ids, "revision")
        function.modified_at_s = now_s
        self.save(function)
        return function

    def _check_role(self, now_s: float, settings: FunctionSettings) -> None:
        in_vpc, role = settings.in_vpc, settings.role
        if self.roles is not None:
            self.roles.check_function(
                now_s, role, in_vpc=in_vpc, has_variables=bool(settings.variables)
            )
        if in_vpc:
            self.draws.check("network throttled")

    def configure_events(
        self, now_s: float, function: LambdaFunction, config: InvokeConfig
    ) -> None:
        """Set how its events are retried. Raises InvalidParameterValueException for destinations
        to which its role may not send (yet)."""
        self.states.check_call(now_s, function.name)
        for arn in (config.on_failure, config.on_success):
            if arn and self.roles is not None:
                self.roles.check_destination(now_s, function.settings.role, arn)
        function.invocations.config = config
        function.configured = True
        self.save(function)

    def add_statement(
        self, now_s: float, function: LambdaFunction, statement: dict[str, object]
    ) -> None:
        """Add a statement to its policy."""
        self.states.check_call(now_s, function.name)
        self.draws.check("change throttled")
        self.permissions.changed(now_s, function.name, function.policy)
        function.statements.append(statement)
        self.save(function)

    def policy_in_force(self, now_s: float, function: LambdaFunction) -> str:
        """The policy as S3 knows it: without its newest statements for a while."""
        self.permissions.known(now_s, function.name)
        return self.permissions.in_force(now_s, function.name, function.policy)

    def running(self, now_s: float, function: LambdaFunction) -> Running:
        """Its settings that run now: the previous ones while an update is InProgress."""
        newest = Running(settings=function.settings, revision=function.revision)
        return self.states.running(now_s, function.name, newest)

    def check_invoke(self, now_s: float, function: LambdaFunction) -> None:
        """Raises ResourceConflictException, ResourceNotReadyException, TooManyRequestsException."""
        self.states.check_invoke(now_s, function.name)
        if self.concurrency.busy(now_s):
            self.draws.count("throttled")
            raise refusal("throttled")

    def _queue(self, name: str, config: InvokeConfig) -> InvocationQueue:
        return InvocationQueue(
            function_arn=self.account.function_arn(name),
            recorder=self.recorder,
            config=config,
            time_scale=self.draws.weather.scale,
            held=lambda now_s: self._held(now_s, name),
            backs_off=self.draws.weather.throttle_back_off,
            note=lambda invocation, condition: self._noted(name, invocation, condition),
        )

    def _noted(self, name: str, invocation: Invocation, condition: str) -> None:
        function = self._functions.get(name)
        if function is not None:
            self.note(function, invocation, condition)

    def _held(self, now_s: float, name: str) -> bool:
        function = self._functions.get(name)
        if function is None:
            return False
        try:
            self.check_invoke(now_s, function)
        except CloudError:
            return True
        return False

    def get(self, reference: str) -> LambdaFunction:
        """By name, partial ARN or ARN. Raises ResourceNotFoundException."""
        name = function_name(reference)
        function = self._functions.get(name) if name is not None else None
        if function is None:
            arn = (
                reference if reference.startswith("arn:") else self.account.function_arn(reference)
            )
            raise CloudError("ResourceNotFoundException", 404, f"Function not found: {arn}")
        return function

    def by_arn(self, arn: str) -> LambdaFunction | None:
        """The function of that ARN (with or without a qualifier), or None."""
        try:
            function = self.get(arn)
        except CloudError:
            return None
        return function if arn == function.arn or arn.startswith(function.arn + ":") else None

    def delete(self, name: str) -> LambdaFunction:
        """Delete a function and its accepted events. Raises ResourceNotFoundException."""
        function = self.get(name)
        del self._functions[function.name]
        self.states.deleted(function.name)
        self.permissions.forget(function.name)
        function.invocations.forget()
        self.recorder.drop(f"function/{part(function.name)}")
        return function

    def all(self) -> list[LambdaFunction]:
        """Every function, by name."""
        return [self._functions[name] for name in sorted(self._functions)]

    def save(self, function: LambdaFunction) -> None:
        """Record a function after one of its fields was changed."""
        recorded = _Recorded(
            settings=function.settings,
            revision=function.revision,
            modified_at_s=function.modified_at_s,
            tags=function.tags,
            statements=tuple(function.statements),
            configured=function.configured,
            invoke_config=function.invocations.config,
            reserved=function.reserved,
        )
        self.recorder.put(f"function/{part(function.name)}", encode(recorded))

    def tag(self, function: LambdaFunction, tags: Mapping[str, str]) -> None:
        """Add tags. Raises InvalidParameterValueException."""
        merged = {**function.tags, **tags}
        _check_tags(merged)
        function.tags = merged
        self.save(function)

    @property
    def unreserved(self) -> int:
        """Runs at a time of all functions without a reservation."""
        return max(0, self.concurrency_max - sum(one.reserved or 0 for one in self.all()))

    def reserve(self, function: LambdaFunction, reserved: int | None) -> None:
        """Reserve concurrency; None: none. Raises InvalidParameterValueException."""
        others = sum(f.reserved or 0 for f in self.all() if f is not function)
        least = unreserved_min(self.concurrency_max)
        if others + (reserved or 0) > self.concurrency_max - least:
            raise refused(
                "InvalidParameterValueException",
                "Specified ReservedConcurrentExecutions for function decreases account's"
                f" UnreservedConcurrentExecution below its minimum value of [{least}].",
            )
        function.reserved = reserved
        self.save(function)

    def restore(self, value: Recorded) -> LambdaFunction:
        """Restore a recorded function."""
        recorded = decode(_Recorded, value, "function")
        settings = recorded.settings
        made = LambdaFunction(
            settings=settings,
            arn=self.account.function_arn(settings.name),
            revision=recorded.revision,
            modified_at_s=recorded.modified_at_s,
            invocations=self._queue(settings.name, recorded.invoke_config),
            tags=dict(recorded.tags),
            statements=[dict(statement) for statement in recorded.statements],
            configured=recorded.configured,
            reserved=recorded.reserved,
        )
        self._functions[settings.name] = made
        return made


def _check(settings: FunctionSettings) -> None:
    """The limits that are missing in AWS's model of the calls."""
    if function_name(settings.name) != settings.name:
        raise refused("ValidationException", f"{settings.name!r} is not a function's name")
    if not 1 <= settings.timeout_s <= 900:
        raise refused("ValidationException", "The timeout must lie between 1 and 900 s")


def _check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise refused("InvalidParameterValueException", f"more than {TAGS_MAX} tags")
    for key, value in tags.items():
        if not re.fullmatch(rf"(?!aws:){_TAG}{{1,128}}", key):
            raise refused("InvalidParameterValueException", f"{key!r} is not the key of a tag")
        if not re.fullmatch(rf"{_TAG}{{0,256}}", value):
            raise refused("InvalidParameterValueException", f"{value!r} is not the value of a tag")
