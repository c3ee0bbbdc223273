"""SCAR's keys: the blocks `lambda`, `iam` and their neighbours, as SCAR's own parser has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from corekit.values import replace
from fdl.beside_device import HOST_MEMORY_MIB_MAX, HOST_TIMEOUT_S_MAX
from fdl.keys.aws import AWS_KEYS, ROLE
from fdl.keys.storage import STORAGES, BucketName
from fdl.model import (
    LAMBDA_MEMORY_MIB_MIN,
    LAMBDA_TIMEOUT_S_MAX,
    Container,
    Deployment,
    FileSystem,
    Lambda,
    Vpc,
)
from fdl.role import Iam
from fdl.schema.scalars import Choice, Flag, Integer, Text
from fdl.schema.schema import Block, Key, ListOf, MapOf, Only, Plain, Values

_TEXT = Text()
LAYERS_MAX = 5  #: Lambda's limit
VARIABLES = MapOf(
    item=Text(empty=True, free=True),
    key_pattern=r"[A-Za-z_][A-Za-z0-9_]*",
    key_what="the name of a variable (letters, digits and _, not starting with a digit)",
)
#: Relative and inside the file's directory; an absolute path is the user's own business.
_FILE = Text(pattern=r"(?!-)[^\n\r]{1,1024}", what="the path of a file", short="a path")
_NO_IMAGE = (
    "no container is started off AWS, and Lambda takes none from a file:"
    " push it to ECR and write `runtime: image` with `container: {image: …}`"
)
ANOTHER_TOOL = (
    "this is a file of another tool (OpenFaaS, Serverless Framework); write"
    " `functions: {aws: [{lambda: {name: NAME, init_script: FILE, input: [BUCKET/PREFIX]}}]}`"
    " with each of its functions"
)


_REGION = Key(
    reader=Text(
        pattern=r"[a-z]{2}(-[a-z]+)+-\d", what="the name of an AWS region", short="a region"
    ),
    about="Region of the deployment; off AWS the endpoint decides.",
    default="the environment's",
)
_PROFILE = Key(
    reader=_TEXT,
    about="The AWS profile of the deploy; off AWS none is used.",
    default="the environment's",
)
_ONE_PROFILE = Key(reader=_TEXT, about="Must be lambda's: one deploy, one profile.")
_ONE_REGION = Key(reader=_REGION.reader, about="Must be lambda's: one deploy, one region.")
_VARIABLES_BLOCK = Only("Variables", VARIABLES)

CONTAINER_KEYS = {
    "image": Key(
        reader=Text(
            pattern=r"[A-Za-z0-9][\w./:@-]{0,511}",
            what="an image, as owner/name:tag",
            short="an image",
        ),
        about="On AWS an ECR image with `runtime: image`; off AWS the script runs on the"
        " machine's own files, and every command reports it.",
    ),
    "ecr_image": Key(
        reader=Text(),
        refused="write `image: <the image in ECR>` and `create_image: false` here, and"
        " `runtime: image` next to `container`",
    ),
    "image_file": Key(
        reader=_FILE, about="A saved image. " + _NO_IMAGE[0].upper() + _NO_IMAGE[1:] + "."
    ),
    "create_image": Key(
        reader=Flag(),
        about="`true` (build and push with Docker) is refused on AWS: push the image to ECR"
        " yourself and write `false`.",
    ),
    "alpine": Key(reader=Flag(), ignored=True, about="The runner needs no musl build."),
    "environment": Key(
        reader=_VARIABLES_BLOCK, to="variables", about="Environment variables of the script."
    ),
    "timeout_threshold": Key(
        reader=Integer(low=0, high=LAMBDA_TIMEOUT_S_MAX - 1, unit="s"),
        to="timeout_threshold_s",
        about="Time of `timeout` reserved for uploading outputs; never more than half of it.",
    ),
}
_CONTAINER = Block(into=Container, keys=CONTAINER_KEYS)
_SIZE = Key(reader=Integer(low=0, high=2**40), ignored=True, about="AWS's own limit holds.")
_DEPLOYMENT = Block(
    into=Deployment,
    keys={
        "bucket": Key(
            reader=BucketName(),
            about="The package is uploaded through it, and kept there.",
            default="the state bucket, for packages too large to send",
        ),
        "max_payload_size": _SIZE,
        "max_s3_payload_size": _SIZE,
    },
)
_VPC = Block(
    into=Vpc,
    keys={
        "SubnetIds": Key(
            reader=ListOf(item=_TEXT),
            to="subnet_ids",
            about="Subnets from which GPU hosts with private addresses are reached.",
        ),
        "SecurityGroupIds": Key(
            reader=ListOf(item=_TEXT),
            to="security_group_ids",
            about="Must allow connections to the hosts' gateways.",
        ),
    },
)
_FILE_SYSTEM = Block(
    into=FileSystem,
    keys={
        "Arn": Key(
            reader=Text(pattern=r"arn:\S+", what="an ARN"),
            to="arn",
            required=True,
            about="EFS access point; needs `vpc`.",
        ),
        "LocalMountPath": Key(
            reader=Text(
                pattern=r"/mnt/(?!\.+$)[A-Za-z0-9._-]+", what="a folder /mnt/NAME", short="a path"
            ),
            to="local_mount_path",
            required=True,
            about="Where it is mounted, below /mnt/.",
        ),
    },
)
_SUPERVISOR = Block(
    into=Values,
    keys={
        name: Key(reader=_TEXT, ignored=True, about="This program's own runner takes its place.")
        for name in ("version", "layer_name", "license_info")
    },
)
_NO_CALL = "objects start the function; each start is asynchronous"

LAMBDA = Block(
    into=Lambda,
    keys={
        "name": Key(
            reader=Text(
                pattern=r"[A-Za-z0-9_-]{1,64}",
                what="a function name (letters, digits, - and _, up to 64)",
                short="letters, digits, - and _, up to 64",
            ),
            required=True,
            about="Name of the function; our queues and buckets are named after it.",
        ),
        "memory": Key(
            reader=Integer(low=LAMBDA_MEMORY_MIB_MIN, high=HOST_MEMORY_MIB_MAX, unit="MB"),
            to="memory_mib",
            about="Memory of the function, not of a device. Lambda has 10240 MB at most.",
        ),
        "timeout": Key(
            reader=Integer(low=1, high=HOST_TIMEOUT_S_MAX, unit="s"),
            to="timeout_s",
            about="The longest run of the function. Lambda has 900 s at most.",
        ),
        "runtime": Key(
            reader=Text(pattern=r"python\d\.\d{1,2}|image", what="python3.x or image"),
            about="The zip runtime, or `image` for an ECR image. One that AWS has retired is"
            " read as the default.",
        ),
        "architectures": Key(
            reader=ListOf(item=Choice(("x86_64", "arm64")), one=True, items_min=1),
            about="The first one counts.",
        ),
        "description": Key(
            reader=Text(
                pattern=r"(?s).{0,256}",
                what="a text of up to 256 characters",
                empty=True,
                lines=True,
            ),
            about="Description of the function.",
        ),
        "region": _REGION,
        "boto_profile": _PROFILE,
        "execution_mode": Key(
            reader=Choice(("lambda", "lambda-batch", "batch")),
            about="The place of SCAR's runs.",
            becomes="`execution` for a zip function with a device: `lambda-batch` `auto`, `batch`"
            " `host`. Of others `lambda`, where `batch` also sets `timeout: 900`",
        ),
        "log_level": Key(
            reader=Choice(("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")),
            about="Log level of the runner; lower case is accepted.",
        ),
        "layers": Key(
            reader=ListOf(
                item=Text(pattern=r"arn:\S+", what="a layer's ARN", short="ARNs"),
                items_max=LAYERS_MAX,
            ),
            about="Layers of a zip function.",
        ),
        "environment": Key(
            reader=replace(
                _VARIABLES_BLOCK, alternative=", or in `container` for the script's own variables"
            ),
            to="variables",
            about="Variables of the Lambda process; the script does not see them.",
        ),
        "init_script": Key(
            reader=_FILE,
            blank=True,
            about="The program that runs for each input: any file with a shebang.",
        ),
        "handler": Key(
            reader=Text(
                pattern=r"([A-Za-z_]\w*\.)+[A-Za-z_]\w*",
                what="a Python function as module.function",
                short="module.function",
            ),
            about="A Python function that is called with one `lambda_functions.work.Work` for each"
            " input, instead of a script; with `completion: object` Lambda's own handler, called"
            " with event and context.",
        ),
        "run_script": Key(
            reader=_FILE,
            about="SCAR sends it with each `scar run`.",
            becomes="`init_script`, unless there is one",
        ),
        "container": Key(reader=_CONTAINER, about="The image, and the script's variables."),
        "input": Key(reader=STORAGES, about="Objects here start the function."),
        "output": Key(reader=STORAGES, about="Destinations of the files in TMP_OUTPUT_DIR."),
        "deployment": Key(reader=_DEPLOYMENT, about="How SCAR uploads packages."),
        "extra_payload": Key(reader=_FILE, about="A folder whose files are added to the package."),
        "vpc": Key(
            reader=_VPC,
            about="The function's network; one with a device gets that of the stack in use.",
        ),
        "file_system": Key(reader=ListOf(item=_FILE_SYSTEM), about="EFS mounts."),
        "supervisor": Key(reader=_SUPERVISOR, about="SCAR's in-function program."),
        "asynchronous": Key(reader=Flag(), ignored=True, about=f"Of `scar run`; {_NO_CALL}."),
        "invocation_type": Key(
            reader=Choice(("RequestResponse", "Event", "DryRun")),
            ignored=True,
            about=f"Of `scar run`; {_NO_CALL}.",
        ),
        "log_type": Key(
            reader=Choice(("Tail", "None")),
            ignored=True,
            about="Of `scar run`; `orchgpu logs` shows logs.",
        ),
        "preheat": Key(
            reader=Flag(), about="Calls the function once after a deploy that changed it."
        ),
        **AWS_KEYS,
    },
)

IAM = Block(
    into=Iam,
    keys={
        "role": Key(
            reader=ROLE,
            blank=True,
            about="The function's execution role; required on AWS.",
        ),
        "create": Key(
            reader=Flag(),
            about="Make a role that may do what this function needs and nothing else, and remove"
            " it with the function; on AWS only.",
        ),
        "permissions_boundary": Key(
            reader=Text(
                pattern=r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/\S+",
                what="the ARN of a policy (arn:aws:iam::<12 digits>:policy/<name>)",
                short="an ARN",
            ),
            about="With `create`: the policy that limits what the role may ever do; by default"
            " the account's `orchgpu-functions`.",
        ),
        "path": Key(
            reader=Text(
                pattern=r"/([A-Za-z0-9_.,+@=-]+/)*",
                what="a path of IAM (begins and ends with /)",
                short="a path, as /team/",
            ),
            about="With `create`: the path of the role; it cannot be changed later.",
        ),
        "boto_profile": _ONE_PROFILE,
        "region": _ONE_REGION,
    },
)
ECR = Block(
    into=Values,
    keys={
        "delete_image": Key(
            reader=Flag(),
            ignored=True,
            about="Nothing of ECR is made here, so nothing of it is deleted.",
        ),
        "boto_profile": _ONE_PROFILE,
        "region": _ONE_REGION,
    },
)
_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180)
_YEARS = (365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
#: PutRetentionPolicy takes no other.
_RETENTION_DAYS = _DAYS + _YEARS
CLOUDWATCH = Block(
    into=Values,
    keys={
        "log_retention_policy_in_days": Key(
            reader=Integer(low=1, high=3653, unit="days", only=_RETENTION_DAYS),
            about="How long CloudWatch keeps the function's logs; `rm` leaves them as they are."
            " Off AWS there is no CloudWatch.",
        ),
        "boto_profile": _ONE_PROFILE,
        "region": _ONE_REGION,
    },
)
#: Keys of the `s3` block before `input` and `output` existed, and the keys that they became.
OLD_PLACES = {
    "input_bucket": "`lambda.input`; without `input_folder` the folder is `<name>/input`",
    "input_folder": "the folder of `lambda.input`",
    "output_bucket": "`lambda.output`; without `output_folder` the folder is `<name>/output`",
    "output_folder": "the folder of `lambda.output`",
    "deployment_bucket": "`lambda.deployment.bucket`",
}
S3_EVENT = Block(
    into=Values,
    keys={
        **{
            name: Key(reader=Text(short="a name"), about="SCAR's key of 2018.", becomes=became)
            for name, became in OLD_PLACES.items()
        },
        "event": Key(reader=Plain(), ignored=True, about="Events are S3's own."),
        "boto_profile": _ONE_PROFILE,
        "region": _ONE_REGION,
    },
)


class Batch(TypedDict, total=False):
    """The keys of SCAR's `batch` block from which something follows."""

    vcpus: int
    memory: int
    enable_gpu: bool
    environment: Mapping[str, str]
    multi_node_parallel: Mapping[str, object]


BATCH = Block(
    into=Batch,
    keys={
        "vcpus": Key(reader=Integer(low=1, high=1024)),
        "memory": Key(reader=Integer(low=4, high=2**24, unit="MB")),
        "enable_gpu": Key(reader=Flag()),
        "service_role": Key(reader=_TEXT),
        "state": Key(reader=_TEXT),
        "type": Key(reader=_TEXT),
        "boto_profile": _PROFILE,
        "region": _REGION,
        "environment": Key(reader=_VARIABLES_BLOCK),
        "compute_resources": Key(reader=Plain()),
        "multi_node_parallel": Key(
            reader=Block(
                into=Values,
                keys={
                    "enabled": Key(reader=Flag()),
                    "number_nodes": Key(reader=Integer(low=1, high=10_000)),
                    "main_node_index": Key(reader=Integer(low=0, high=10_000)),
                },
            )
        ),
    },
)
_PROVIDER_KEYS = {
    "s3": ("access_key", "secret_key", "region"),
    "minio": ("endpoint", "access_key", "secret_key", "region", "verify"),
    "onedata": ("oneprovider_host", "token", "space"),
}
_FOREIGN_PROVIDER = (
    "is not served; copy the objects to S3 and write `storage_provider: s3` with their bucket"
)
STORAGE_PROVIDERS = Block(
    into=Values,
    keys={
        **{
            kind: Key(
                reader=MapOf(
                    item=Block(into=Values, keys={name: Key(reader=_TEXT) for name in names})
                ),
                about="Credentials by id.",
                dropped="the function's role reaches S3; nothing sends credentials",
            )
            for kind, names in _PROVIDER_KEYS.items()
        },
        **{kind: Key(reader=Plain(), refused=_FOREIGN_PROVIDER) for kind in ("webdav", "rucio")},
    },
)
