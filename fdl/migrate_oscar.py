"""OSCAR's services, as far as a Lambda function can do the same."""

from __future__ import annotations

from fdl.keys_scar import CONTAINER_KEYS, LAMBDA, STORAGES, VARIABLES
from fdl.nodes import Location, Mapping, Node, Scalar
from fdl.scalars import Flag, Memory, Text
from fdl.schema import Block, Key, Only

_CLUSTER = "is the cluster's business, and there is no cluster here: leave it out"
_SECRETS = (
    "are kept by the cluster, and there is no cluster here: let the function's role read a store "
    "of secrets, as AWS Secrets Manager"
)
#: Keys of OSCAR that say how its cluster runs a service.
_REFUSED = (
    "total_memory", "total_cpu", "synchronous", "expose", "replicas", "federation", "clusters",
    "image_pull_secrets", "image_prefetch", "enable_sgx", "interlink_node_name", "volume", "mount",
    "ephemeral_storage_request", "vo", "allowed_users", "visibility", "isolation_level",
    "file_stage_in", "labels", "annotations", "kserve", "rescheduler_threshold",
)  # fmt: skip

OSCAR_SERVICE = Block(
    into=dict,
    keys={
        "name": LAMBDA.keys["name"],
        "image": Key(reader=CONTAINER_KEYS["image"].reader),
        "script": Key(reader=LAMBDA.keys["init_script"].reader),
        "memory": Key(reader=Memory()),
        "cpu": Key(reader=Text()),
        "enable_gpu": Key(reader=Flag()),
        "alpine": Key(reader=Flag()),
        "log_level": LAMBDA.keys["log_level"],
        "environment": Key(
            reader=Only("Variables", VARIABLES, also="variables", refused=("secrets", _SECRETS))
        ),
        "input": Key(reader=STORAGES),
        "output": Key(reader=STORAGES),
        **{name: Key(reader=Text(), refused=_CLUSTER) for name in _REFUSED},
    },
)
#: Lambda's longest run: OSCAR's jobs have no limit of their own.
_TIMEOUT_S_MAX = 900
_MEMORY_MB_MIN = 128


def function_of_service(service: Mapping) -> Mapping:
    """The element of `functions.aws` that does what a valid service does.

    `cpu` goes: Lambda gives processors by memory. `enable_gpu` is one lent device.
    """
    block = Mapping(entries=(), at=service.at)
    for key, to in (("name", "name"), ("script", "init_script"), ("log_level", "log_level")):
        block = _taken(block, to, service.child(key))
    memory = service.child("memory")
    if isinstance(memory, Scalar) and not memory.is_null:
        size_mb = max(Memory().size_mib(memory.text), _MEMORY_MB_MIN)
        block = block.having("memory", _plain(size_mb, memory.at))
    block = block.having("timeout", _plain(_TIMEOUT_S_MAX, service.at))
    container = _taken(Mapping(entries=(), at=service.at), "image", service.child("image"))
    container = _taken(container, "environment", _environment(service.child("environment")))
    if container.entries:
        block = block.having("container", container)
    for key in ("input", "output"):
        block = _taken(block, key, service.child(key))
    element = Mapping(entries=(), at=service.at).having("lambda", block)
    wants = service.child("enable_gpu")
    if isinstance(wants, Scalar) and wants.text.lower() in ("true", "yes", "on"):
        count = Mapping(entries=(), at=wants.at, flow=True).having("count", _plain(1, wants.at))
        element = element.having("gpu", count)
    return element


def _plain(value: int, at: Location) -> Scalar:
    return Scalar(text=str(value), plain=True, at=at)


def _taken(block: Mapping, key: str, value: Node | None) -> Mapping:
    return block if value is None else block.having(key, value)


def _environment(node: Node | None) -> Node | None:
    """OSCAR writes `variables` where SCAR writes `Variables`."""
    if isinstance(node, Mapping) and node.entry("variables") is not None:
        variables = node.child("variables")
        assert variables is not None, "its entry is there"
        return node.having("Variables", variables, instead_of="variables")
    return node
