"""OSCAR's keys: those of a service, read, left out or refused with what to write instead."""

from __future__ import annotations

from fdl.keys.scar import CONTAINER_KEYS, LAMBDA, VARIABLES
from fdl.keys.storage import STORAGES
from fdl.schema.scalars import Flag, Memory, Text
from fdl.schema.schema import Block, Key, Only, Plain, Values

_SECRETS = (
    "values in clear, which OSCAR's cluster keeps: keep each in a store instead, and write"
    " `secrets: {NAME: ssm:/NAME}` next to `lambda` in `functions.aws`"
)
_HTTP = (
    "a service that answers HTTP requests is not a function that objects start: leave it out and"
    " write `script:` with the program that handles one file, and `input:` with its bucket"
)
_DISK = (
    "no disk of a cluster is mounted here: leave it out and let the script use the files of"
    " `input`; for a shared disk write `file_system:` (EFS) in a `lambda` block"
)
_ENCLAVE = (
    "Lambda and the devices run outside of SGX enclaves: leave it out only if the data may be"
    " processed in clear"
)
#: Keys of services that a function cannot replace; what to write instead.
_REFUSED = {
    "expose": _HTTP,
    "kserve": _HTTP,
    "volume": _DISK,
    "mount": _DISK,
    "workspace": _DISK,
    "enable_sgx": _ENCLAVE,
}
_SCALING = "Lambda starts as many as there are jobs; write `job: {concurrency: …}` for a limit"
_ACCESS = "access is controlled by IAM and the policies of the buckets"
DELEGATED = "jobs are not delegated to other clusters; they wait here for a device"
_NAMES = "deploy sets the tags of the function"
_PLACED = "the scheduler chooses the device"
#: Keys that are left out, with the reason.
_LEFT_OUT = {
    "cpu": "Lambda gives processors by memory",
    "total_memory": _SCALING,
    "total_cpu": _SCALING,
    "synchronous": _SCALING,
    "vo": _ACCESS,
    "allowed_users": _ACCESS,
    "visibility": _ACCESS,
    "isolation_level": _ACCESS,
    "replicas": DELEGATED,
    "federation": DELEGATED,
    "rescheduler_threshold": DELEGATED,
    "delegation": DELEGATED,
    "clusters": DELEGATED,
    "labels": _NAMES,
    "annotations": _NAMES,
    "interlink_node_name": _PLACED,
    "image_prefetch": "Lambda caches images of ECR by itself",
    "image_pull_secrets": "the function's role reaches ECR",
    "ephemeral_storage_request": "the function has Lambda's own /tmp; write `ephemeral_storage` for"
    " its size, in MB",
    "file_stage_in": "the input is always there as a file, at INPUT_FILE_PATH",
    "propagate_token": "a job carries no token; the function has its own role",
    "storage_providers": "all storage is in S3, reached by the function's role",
}

OSCAR_SERVICE = Block(
    into=Values,
    keys={
        "name": LAMBDA.keys["name"],
        "image": Key(reader=CONTAINER_KEYS["image"].reader, becomes="`container.image`"),
        "script": Key(reader=LAMBDA.keys["init_script"].reader, becomes="`init_script`"),
        "memory": Key(reader=Memory(), becomes="`memory`, in MB"),
        "alpine": Key(reader=Flag(), ignored=True, about="the runner needs no musl build"),
        "enable_gpu": Key(reader=Flag(), becomes="`gpu: {count: 1}`"),
        "log_level": LAMBDA.keys["log_level"],
        "environment": Key(
            reader=Only("Variables", VARIABLES, also="variables", refused=("secrets", _SECRETS)),
            becomes="`container.environment`",
        ),
        "input": Key(reader=STORAGES),
        "output": Key(reader=STORAGES),
        **{
            name: Key(reader=Plain(), ignored=True, about=about)
            for name, about in _LEFT_OUT.items()
        },
        **{name: Key(reader=Text(), refused=instead) for name, instead in _REFUSED.items()},
    },
)
