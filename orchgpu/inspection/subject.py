"""The functions of a subject: of a definition, or deployed, as Lambda describes them. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from contract.secrets.reference import SecretReference, parse_reference
from corekit.decode import decode, encode
from corekit.errors import AppError
from corekit.values import replace
from fdl.beside_device import Batch, Host
from fdl.model import (
    DEFAULT_RUNTIME,
    Function,
    Gpu,
    Intermediate,
    Job,
    Lambda,
    Path,
    Queue,
    Storage,
    Vpc,
)
from fdl.notified import Notified
from fdl.plan.resources import DeployTarget
from fdl.plan.secrets import deployed_secrets
from fdl.role import Iam
from orchgpu.core.execution import Place
from orchgpu.core.function import Function as Served
from orchgpu.core.function import HostRun
from orchgpu.core.notify import Target
from orchgpu.core.runs.workflow import Workflow
from orchgpu.inspection.model import Answer, Inspected, Read, ReadCall

#: The signs of a boto3 that a package ships.
BOTO3_FILE = "boto3/__init__.py"


def declared(function: Function, place: DeployTarget, boto3: str, read: Read) -> Inspected:
    """A function of a definition; it is inspected as declared, not as it is deployed."""
    try:
        _configuration(function.name, read)
    except AppError:
        exists = False
    else:
        exists = True
    role = "" if function.iam.create or place.local else function.iam.role or ""
    return Inspected(function=function, deployed=exists, role=role, boto3=boto3)


def deployed(served: Served, read: Read, workflow: Workflow | None = None) -> Inspected:
    """A deployed function, by its record and Lambda's settings, if it is there. Raises AppError.

    `workflow`: whose step it is: the orchestrator's role needs its queues and the objects of its
    runs, too.
    """
    in_lambda = served.execution != Place.HOST
    answer = _configuration(served.name, read) if in_lambda else _on_host(served)
    function = _declaration(served, answer)
    if workflow is not None:
        runs_place = Path(bucket=workflow.bucket)
        function = replace(
            function,
            workflow=workflow.name,
            runs_place=runs_place,
            run_notify=tuple(_notified(workflow.notify)),
        )
    return Inspected(function=function, deployed=in_lambda, role=answer["Role"])


def _on_host(served: Served) -> Answer:
    """The answer of Lambda about a function, for one that it does not have."""
    run = served.host or HostRun(package_bucket="", package_key="")
    found = {"MemorySize": served.memory_mib, "Timeout": served.timeout_s, "Role": run.role}
    return {**found, "Runtime": DEFAULT_RUNTIME, "Environment": {"Variables": run.process}}


def _configuration(name: str, read: Read) -> Answer:
    arguments = {"FunctionName": name}
    return read(
        ReadCall(service="lambda", operation="GetFunctionConfiguration", arguments=arguments)
    )


def _secrets(variables: Mapping[str, str]) -> dict[str, SecretReference]:
    found = {}
    for name, text in deployed_secrets(variables).items():
        with contextlib.suppress(ValueError):
            found[name] = parse_reference(text)
    return found


def _notified(targets: Iterable[Target]) -> Iterator[Notified]:
    for one in targets:
        secret = None
        with contextlib.suppress(ValueError):
            secret = parse_reference(one.secret) if one.secret else None
        yield Notified(queue=one.queue, topic=one.topic, webhook=one.webhook, secret=secret)


def _host(served: Served) -> Host:
    batch = None if served.host is None else served.host.batch
    return Host(batch=None if batch is None else decode(Batch, encode(batch)))


def _declaration(served: Served, answer: Answer) -> Function:
    network = answer.get("VpcConfig", {})
    urls = (served.queue_url, served.dead_letter_url, served.completion_url)
    jobs, dead, done = (url.rpartition("/")[2] for url in urls)
    target = served.object_bucket
    return Function(
        function=Lambda(
            name=served.name,
            memory_mib=int(answer["MemorySize"]),
            timeout_s=int(answer["Timeout"]) - round(served.advance_s),
            runtime=str(answer.get("Runtime") or "image"),
            architectures=tuple(answer.get("Architectures", ("x86_64",))),
            layers=tuple(str(one["Arn"]) for one in answer.get("Layers", ())),
            vpc=Vpc(
                subnet_ids=tuple(network.get("SubnetIds", ())),
                security_group_ids=tuple(network.get("SecurityGroupIds", ())),
            ),
            output=tuple(
                Storage(path=Path(bucket=one.bucket, prefix=one.prefix)) for one in served.outputs
            ),
        ),
        execution=served.execution,
        host=_host(served),
        iam=Iam(role=str(answer["Role"])),
        secrets=_secrets(answer.get("Environment", {}).get("Variables", {})),
        gpu=Gpu(),
        notify=tuple(_notified(served.notify)),
        job=Job(
            input=(Storage(path=Path(bucket=served.input_bucket, prefix=served.input_prefix)),),
            intermediate=Intermediate(path=Path(bucket=served.intermediate_bucket)),
            queue=Queue(name=jobs, dead_letter=dead, completion=done),
            concurrency_max=served.concurrency_max,
            advance_s=served.advance_s,
            completion="object" if target else "result",
            object=Path(bucket=target, prefix=served.object_key) if target else None,
        ),
    )
