"""The resources of an orchestrator without a server: two functions for each function with jobs.

They are deployed under the name `NAME-orchestrate`, with a ledger of their own.
"""

from __future__ import annotations

from contract.secrets.reference import parse_reference
from corekit.budget import Budget
from corekit.errors import invalid
from corekit.net.addresses import is_loopback, parse_addresses
from corekit.values import Value
from fdl.model import Function, Vpc
from fdl.plan import resources as kinds
from fdl.plan.desired import DesiredFunction
from fdl.plan.functions import LOCAL_ROLE, Code
from fdl.plan.resources import DeployTarget
from fdl.plan.tags import CREATOR, PACKAGE_TAG, tags_of
from orchgpu.deploy.visits_package import RUNTIME

ORCHESTRATE, COMPLETE = "orchestrate", "complete"
#: Lambda's limit for the name of a function.
_NAME_CHARS_MAX = 64
#: Of both functions: a visit is calls, but for what it imports.
MEMORY_MIB = 512
#: SQS must hide messages for as long as their function may run.
TIMEOUT_S_MAX = 60
BATCH, CONCURRENCY_MAX = 10, 10
SWEEP_EVERY_MIN = 1


class VisitSettings(Value):
    """The settings of visits that are in no definition."""

    scheduler: str  #: its address, as Lambda reaches it
    role: str = ""  #: ARN; "" on a local cloud alone
    key_secret: str = ""  #: entry of a secret store with the scheduler's key; "" = none
    ca: bytes | None = None  #: of the scheduler's certificate
    network: Vpc = Vpc()  #: of visits whose function has none


def visits_name(function: str) -> str:
    """The name under which the visits of a function are deployed."""
    return f"{function}-{ORCHESTRATE}"


def check(function: Function, place: DeployTarget, settings: VisitSettings) -> None:
    """Raise INVALID for what needs the service, `orchgpu orchestrate`."""
    name = function.name
    if not function.queued:
        raise invalid(f"{name}: --serverless is for functions with jobs, and this has `job: none`")
    if function.workflow:
        raise invalid(f"{name}: --serverless follows no runs of workflows; serve them")
    if function.foreign:
        text = "has no result whose event ends its job (`completion: object`)"
        raise invalid(f"{name}: --serverless cannot serve it: it {text}")
    if function.gpu is not None and function.gpu.warm_min:
        text = "has `warm_min`, which lasts as long as an orchestrator's session: a visit ends"
        raise invalid(f"{name}: --serverless cannot serve it: it {text}; leave it out, or serve it")
    if len(visits_name(name)) > _NAME_CHARS_MAX:
        most = _NAME_CHARS_MAX - len(visits_name(""))
        raise invalid(f"{name}: --serverless needs a name of {most} characters at most")
    if settings.key_secret:
        try:
            parse_reference(settings.key_secret)
        except ValueError as error:
            raise invalid(f"--key-secret {settings.key_secret!r}: {error}") from None
    if place.local:
        return
    if not settings.role:
        text = "--serverless needs --visits-role, the ARN of a role with the policy that"
        raise invalid(f"{text} `orchgpu iam visits FILE` prints")
    if any(is_loopback(host) for host, _ in parse_addresses(settings.scheduler)):
        text = f"--scheduler {settings.scheduler}: Lambda reaches no address of this machine alone;"
        raise invalid(f"{text} name the one by which other machines reach the scheduler")


def desired_visits(
    function: Function, place: DeployTarget, code: Code, budget: Budget, settings: VisitSettings
) -> DesiredFunction:
    """The resources of the visits of a function that `check` passed."""
    jobs, _, done = function.queues
    own = function.function.vpc
    network = own if own.subnet_ids else settings.network
    name = visits_name(function.name)
    package = kinds.Package(bucket=place.state_bucket, sha256=code.sha256)
    role = settings.role or place.role_arn(LOCAL_ROLE)
    tags = tags_of(function)
    if place.local:
        tags[PACKAGE_TAG] = f"s3://{package.bucket}/{package.object_key}"
    variables = {
        "ORCHGPU_FUNCTIONS": function.name,
        "ORCHGPU_SCHEDULER": settings.scheduler,
        **({"ORCHGPU_SCHEDULER_KEY_SECRET": settings.key_secret} if settings.key_secret else {}),
        **({"ORCHGPU_TIME_SCALE": _scale(budget)} if _scale(budget) != "1" else {}),
    }

    def visiting(word: str) -> kinds.FunctionResource:
        return kinds.FunctionResource(
            name=f"{function.name}-{word}",
            role=role,
            memory_mib=MEMORY_MIB,
            timeout_s=max(1, min(TIMEOUT_S_MAX, round(budget.visibility_s))),
            runtime=RUNTIME,
            handler=f"lambda_functions.{word}.handler.handle",
            package=code.sha256,
            code_at=(package.bucket, package.object_key),
            architectures=function.function.architectures[:1] or ("x86_64",),
            variables=variables,
            subnet_ids=network.subnet_ids,
            security_group_ids=network.security_group_ids,
            tags=tags,
        )

    sources = [
        kinds.EventSource(
            function=f"{function.name}-{word}",
            queue=queue,
            batch=BATCH,
            concurrency_max=CONCURRENCY_MAX,
        )
        for word, queue in ((ORCHESTRATE, jobs), (COMPLETE, done))
    ]
    state = kinds.Bucket(
        name=place.state_bucket, versioned=False, region=place.region, tags=CREATOR
    )
    sweep = kinds.Schedule(name=name, every_min=SWEEP_EVERY_MIN, function=name, role=role)
    functions = [visiting(word) for word in (ORCHESTRATE, COMPLETE)]
    return DesiredFunction(name=name, resources=(state, package, *functions, *sources, sweep))


def _scale(budget: Budget) -> str:
    """The time scale of a budget, for the visits of a local system."""
    return f"{budget.visibility_s / Budget().visibility_s:g}"
