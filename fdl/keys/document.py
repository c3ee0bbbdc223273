"""The whole document as one tree of known keys: for the reader, `fdl explain` and editors.

SCAR's blocks are in `scar`, ours in `jobs`. A key that is not here is refused with a
did-you-mean; `x-…` keys are the user's own. Keys that `fdl.migrate` rewrites are listed here too,
for editors and for the table of all keys; the readers never see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corekit.values import replace
from fdl.keys.data import DATA
from fdl.keys.host import ENDPOINT, EXECUTION, HOST, LAMBDA_LIMITS, check_place
from fdl.keys.http import HTTP, SERVICE
from fdl.keys.jobs import GPU, JOB
from fdl.keys.notify import NOTIFY
from fdl.keys.oscar import OSCAR_SERVICE
from fdl.keys.scar import (
    ANOTHER_TOOL,
    BATCH,
    CLOUDWATCH,
    ECR,
    IAM,
    LAMBDA,
    S3_EVENT,
    STORAGE_PROVIDERS,
)
from fdl.keys.schedule import SCHEDULE
from fdl.keys.secrets import Secrets
from fdl.keys.workflows import Workflows
from fdl.model import Document, Function, Functions
from fdl.schema.scalars import Text
from fdl.schema.schema import Block, Key, ListOf, MapOf, Plain, Reading, Schema
from fdl.text.nodes import Node


@dataclass(frozen=True, slots=True)
class Element:
    """One element of `functions.aws`; remembers its own path."""

    block: Block[Function]

    def read(self, node: Node, path: str, reading: Reading) -> Function:
        value = replace(self.block.read(node, path, reading), path=path)
        check_place(value, node, reading)
        return value

    def describe(self) -> str:
        return self.block.describe()

    def schema(self) -> Schema:
        return {**self.block.schema(), **LAMBDA_LIMITS}


ELEMENT = Block(
    into=Function,
    keys={
        "lambda": Key(reader=LAMBDA, to="function", required=True, about="The function itself."),
        "gpu": Key(
            reader=GPU,
            bare=True,
            about="The request of each job to the scheduler; `none`: its jobs need no device.",
            default="`none`",
        ),
        "job": Key(
            reader=JOB,
            bare=True,
            about="The jobs that input becomes; `none`: each object starts the function by itself,"
            " as in SCAR, and a start that fails three times leaves a dead letter, nothing else.",
            default="a job for each object of the input",
        ),
        "execution": EXECUTION,
        "host": Key(
            reader=HOST,
            about="The run on a host. It takes no layers, and has Lambda's other limits neither.",
        ),
        "endpoint": Key(
            reader=ENDPOINT,
            about="Whether programs may call the function over HTTP: its process and its device"
            " stay for further calls.",
            default="false",
        ),
        "http": Key(
            reader=HTTP,
            about="Whether programs with rights in IAM submit jobs by a URL of the function's own:"
            " on AWS a Function URL. Elsewhere `orchgpu web` serves every function.",
            default="false",
        ),
        "service": Key(
            reader=SERVICE,
            about="The HTTP service that runs the function, of Knative or OpenFaaS: on cloud `own`,"
            " in place of Lambda.",
        ),
        "secrets": Key(
            reader=Secrets(),
            about="Variables of the script whose values are read when a run starts, by the"
            " function's role. `file:`, a path on the function's machine, is refused on AWS.",
        ),
        "data": Key(
            reader=DATA,
            about="Data sets and models that the host of the device fetches before the job runs and"
            " keeps for later ones, or has (`host:NAME`).",
        ),
        "notify": Key(
            reader=NOTIFY,
            about="Notified of the end of each job, at least once.",
            default="none",
        ),
        "schedule": Key(
            reader=SCHEDULE,
            about="Times at which an object is put into the first input, as an upload.",
            default="none",
        ),
        "group": Key(
            reader=Text(
                pattern=r"[A-Za-z0-9_-]{1,64}",
                what="the name of a group (letters, digits, - and _, up to 64)",
                short="letters, digits, - and _, up to 64",
            ),
            about="Steps of one group become one function of this name: one job, one lease with"
            " the sum of their memory, and files that go from step to step without S3.",
        ),
        "iam": Key(reader=IAM, about="The function's role."),
        "ecr": Key(reader=ECR, about="SCAR's image repository; nothing of ECR is made here."),
        "cloudwatch": Key(reader=CLOUDWATCH, about="The function's log group."),
        "api_gateway": Key(
            reader=Plain(),
            about="SCAR's HTTP endpoint.",
            becomes="`http: true`, a Function URL signed by IAM, which no API Gateway is",
        ),
        "s3": Key(reader=S3_EVENT, about="SCAR's template of a made-up event; events are S3's."),
        "batch": Key(
            reader=BATCH,
            about="AWS Batch.",
            becomes="`enable_gpu` → `gpu: {count: 1}`; with `execution_mode: batch`, `memory` →"
            " `lambda.memory`",
            dropped="hosts are used instead; for a device write `gpu: {count: 1}`",
        ),
    },
)
_ELEMENT = Element(ELEMENT)
DOCUMENT = Block(
    into=Document,
    keys={
        "functions": Key(
            required=True,
            bare=True,
            about="The functions; together they are a workflow: an output that another one's input"
            " takes is an edge.",
            reader=Block(
                into=Functions,
                keys={
                    "aws": Key(reader=ListOf(item=_ELEMENT), about="Lambda functions."),
                    "oscar": Key(
                        reader=ListOf(item=MapOf(item=OSCAR_SERVICE)),
                        about="OSCAR's services.",
                        becomes="elements of `functions.aws`; `enable_gpu: true` becomes"
                        " `gpu: {count: 1}`",
                    ),
                },
            ),
        ),
        "workflows": Key(
            reader=Workflows(),
            about="Functions whose jobs about one input are one run: it is started by an input of"
            " the first step, and followed, cancelled and retried as a whole.",
            default="each object starts a job of its own",
        ),
        "storage_providers": Key(
            reader=STORAGE_PROVIDERS,
            about="Credentials of storage.",
            dropped="all storage is in S3, reached by the function's role",
        ),
        "provider": Key(reader=Plain(), refused=ANOTHER_TOOL),
        "scar": Key(reader=Plain(), ignored=True, about="SCAR's own notes."),
    },
)


def json_schema(middlewares: Sequence[str] = ()) -> Schema:
    """The JSON Schema of a whole file, for the user's editor.

    `middlewares`: names that the editor proposes.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "SCAR function definition with gpu: and job:",
        **DOCUMENT.schema(),
        "$defs": {
            "middlewares": {"examples": list(middlewares)},
            GPU.definition: GPU.own_schema(),
        },
    }
