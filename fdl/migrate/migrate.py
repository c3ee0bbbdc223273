"""Older shapes and foreign blocks, rewritten into supported keys; nodes to nodes.

A deploy reads exactly the text that `orchgpu fdl migrate` prints: there is one translation. Every
rewrite is a warning with its location. A file that needs none stays as it is, node for node.
"""

from __future__ import annotations

from collections.abc import Callable

from corekit.values import replace
from fdl.beside_device import HOST_MEMORY_MIB_MAX, HOST_TIMEOUT_S_MAX
from fdl.keys.scar import ANOTHER_TOOL, BATCH, STORAGE_PROVIDERS, Batch
from fdl.migrate.migration import Migration, scalar_text, text
from fdl.migrate.oscar import services
from fdl.migrate.scar_shapes import (
    duplicated,
    into_container,
    named_storages,
    old_place,
    old_places,
    shape_of_functions,
)
from fdl.model import (
    DEFAULT_RUNTIME,
    LAMBDA_MEMORY_MIB_MAX,
    LAMBDA_MEMORY_MIB_MIN,
    LAMBDA_TIMEOUT_S_MAX,
    RETIRED_RUNTIMES,
    Rewrite,
)
from fdl.schema.schema import Faulty, Reading
from fdl.served import NAME_CHARS_MAX, http_name
from fdl.text.nodes import Entry, Mapping, Node, Sequence

#: SCAR's mode of execution → the place of a function with a device.
_PLACES = {"lambda-batch": "auto", "batch": "host"}
#: SCAR's default of `batch.memory`.
_BATCH_MEMORY_MB = 1024
#: Names of S3; storage of every other provider is read as S3, with a warning.
_S3 = ("s3", "s3.default")
_TRANSLATED_PROVIDERS = ("s3", "minio", "onedata")


def migrate(root: Node, reading: Reading) -> tuple[Node, tuple[Rewrite, ...]]:
    """The file as it is read, and the rewrites; faults in dropped blocks are noted.

    Raises Faulty for a file of another tool.
    """
    if not isinstance(root, Mapping):
        return root, ()
    provider = root.entry("provider")
    if provider is not None:  # another tool's file: the rest of it is not checked
        reading.fault(provider.value, "provider", ANOTHER_TOOL)
        raise Faulty
    work = Migration(reading=reading)
    for step in (named_storages, shape_of_functions, services, _functions, _providers):
        root = step(work, root)
    return root, tuple(work.rewrites)


def _providers(work: Migration, root: Mapping) -> Mapping:
    entry = root.entry("storage_providers")
    if entry is None:
        return root
    named = _providers_by_name(entry.value)
    if not work.reading.accepts(STORAGE_PROVIDERS, named, "storage_providers"):
        return root.without("storage_providers")
    message = (
        "left out: all storage is in S3, reached by the function's role;"
        " credentials in clear are not used; remove them from the file"
    )
    work.warn("storage_providers", entry.at, message)
    return root.without("storage_providers")


def _providers_by_name(providers: Node) -> Node:
    """`s3: [{name: …}]` is an older way to write `s3: {…: {}}`."""
    if not isinstance(providers, Mapping):
        return providers
    for entry in providers.entries:
        if isinstance(entry.value, Sequence):
            named = tuple(
                Entry(
                    key=scalar_text(item.child("name")) or f"{number}",
                    at=item.at,
                    value=item.without("name", "auth", "type"),
                )
                for number, item in enumerate(entry.value.items)
                if isinstance(item, Mapping)
            )
            providers = providers.with_entry(entry.key, Mapping(entries=named, at=entry.value.at))
    return providers


# ---------------------------------------------------------------------- one function


def _functions(work: Migration, root: Mapping) -> Mapping:
    functions = root.child("functions")
    aws = functions.child("aws") if isinstance(functions, Mapping) else None
    if not isinstance(functions, Mapping) or not isinstance(aws, Sequence):
        return root
    items = tuple(
        _element(work, item, f"functions.aws[{index}]") if isinstance(item, Mapping) else item
        for index, item in enumerate(aws.items)
    )
    if all(new is old for new, old in zip(items, aws.items, strict=True)):
        return root
    return root.with_entry("functions", functions.with_entry("aws", replace(aws, items=items)))


def _element(work: Migration, element: Mapping, path: str) -> Mapping:
    element = old_places(work, element, path)
    block = element.child("lambda")
    if isinstance(block, Mapping):
        steps: tuple[Callable[[Migration, Mapping, str], Mapping], ...] = (
            _stray_quotes,
            _container,
            _words,
            _run_script,
            _places,
        )
        changed = block
        for step in steps:
            changed = step(work, changed, f"{path}.lambda")
        if changed is not block:
            element = element.with_entry("lambda", changed)
    element = _batch(work, element, path)
    return _api(work, element, path)


def _api(work: Migration, element: Mapping, path: str) -> Mapping:
    """SCAR's endpoint; a name without room for that of a further function gets none."""
    api = element.entry("api_gateway")
    if api is None:
        return element
    block = element.child("lambda")
    name = scalar_text(block.child("name")) if isinstance(block, Mapping) else None
    has_room = len(http_name(name or "")) <= NAME_CHARS_MAX
    message = "read as http: true: on AWS a Function URL, whose callers sign by IAM, and no API "
    message += "Gateway; deploy makes a role for it, also beside iam.role (http: false: no URL)"
    if not has_room:
        message = f"no URL is made: {name}-http would have more than {NAME_CHARS_MAX} characters"
    work.warn(f"{path}.api_gateway", api.at, message)
    element = element.without("api_gateway")
    if has_room and element.entry("http") is None:
        element = element.with_entry("http", text("true", api.at))
    return element


def _stray_quotes(work: Migration, block: Mapping, path: str) -> Mapping:
    """`timeout_threshold": 10`, as in SCAR's own commented example."""
    for entry in block.entries:
        inner = f"{path}.{entry.key}"
        if entry.key.endswith('"'):
            clean = entry.key.rstrip('"')
            work.warn(inner, entry.at, f"a stray quote; read as {clean}")
            block = block.with_entry(clean, entry.value, instead_of=entry.key)
        elif entry.key == "container" and isinstance(entry.value, Mapping):
            changed = _stray_quotes(work, entry.value, inner)
            block = block if changed is entry.value else block.with_entry(entry.key, changed)
    return block


def _container(work: Migration, block: Mapping, path: str) -> Mapping:
    """Settings of the container, which older files have among the function's own keys."""
    for key in ("image", "image_file", "timeout_threshold"):
        entry = block.entry(key)
        if entry is None:
            continue
        if duplicated(work, block, key, f"{path}.{key}"):
            block = block.without(key)
            continue
        work.warn(f"{path}.{key}", entry.at, f"an older shape; read as container.{key}")
        work.moved(f"{path}.container.{key}", f"{path}.{key}")
        block = into_container(block, key, entry.value, instead_of=key)
    return block


def _words(work: Migration, block: Mapping, path: str) -> Mapping:
    """Values that changed: a lower-case log level, a runtime that AWS has retired."""
    level = block.entry("log_level")
    word = scalar_text(level.value) if level is not None else None
    if level is not None and word is not None and word != word.upper():
        work.warn(f"{path}.log_level", level.at, f"read as {word.upper()}")
        block = block.with_entry("log_level", text(word.upper(), level.value.at))
    runtime = block.entry("runtime")
    if runtime is not None and scalar_text(runtime.value) in RETIRED_RUNTIMES:
        message = f"{scalar_text(runtime.value)} is retired by AWS; read as {DEFAULT_RUNTIME}"
        work.warn(f"{path}.runtime", runtime.at, message)
        block = block.with_entry("runtime", text(DEFAULT_RUNTIME, runtime.value.at))
    return block


def _run_script(work: Migration, block: Mapping, path: str) -> Mapping:
    """SCAR sends it with each `scar run`; here the function holds its one script."""
    entry = block.entry("run_script")
    if entry is None:
        return block
    if scalar_text(block.child("init_script")) is not None:
        work.warn(f"{path}.run_script", entry.at, "left out: init_script runs instead")
        return block.without("run_script")
    work.warn(f"{path}.run_script", entry.at, "read as init_script: the function holds its script")
    return block.without("init_script").with_entry(
        "init_script", entry.value, instead_of="run_script"
    )


def _places(work: Migration, block: Mapping, path: str) -> Mapping:
    for key in ("input", "output"):
        places = block.child(key)
        if not isinstance(places, Sequence):
            continue
        items = tuple(
            _place(work, item, f"{path}.{key}[{index}]") for index, item in enumerate(places.items)
        )
        if any(new is not old for new, old in zip(items, places.items, strict=True)):
            block = block.with_entry(key, replace(places, items=items))
    return block


def _place(work: Migration, place: Node, path: str) -> Node:
    """Storage of another provider is read as S3, at the same path."""
    place = old_place(work, place, path)
    entry = place.entry("storage_provider") if isinstance(place, Mapping) else None
    name = scalar_text(entry.value) if entry is not None else None
    if entry is None or name is None or name in _S3 or not isinstance(place, Mapping):
        return place
    if name.partition(".")[0] not in _TRANSLATED_PROVIDERS:
        return place
    where = "with the function's role" if name.startswith("s3.") else "at the same path"
    work.warn(f"{path}.storage_provider", entry.at, f"{name} is not served; read as s3 {where}")
    return place.with_entry("storage_provider", text("s3", entry.value.at))


def _batch(work: Migration, element: Mapping, path: str) -> Mapping:
    """SCAR's AWS Batch, for more time, memory or a GPU, becomes the host of a device."""
    block = element.child("lambda")
    mode = block.entry("execution_mode") if isinstance(block, Mapping) else None
    word = scalar_text(mode.value) if mode is not None else None
    entry = element.entry("batch")
    declared: Batch = {}
    if entry is not None:
        declared = work.reading.value(BATCH, entry.value, f"{path}.batch") or {}
    place = "lambda"
    if mode is not None and isinstance(block, Mapping) and word in _PLACES:
        place = _PLACES[word] if _can_be_on_host(element, block, declared) else place
        element = _place_of(work, element, block.without("execution_mode"), mode, place, path)
        block = element.child("lambda")
    if entry is None:
        return element
    most_mb = LAMBDA_MEMORY_MIB_MAX if place == "lambda" else HOST_MEMORY_MIB_MAX
    element = element.without("batch")
    parts, memory_mb = [], None
    if word == "batch" and "memory" in declared and isinstance(block, Mapping):
        memory_mb = min(max(declared["memory"], LAMBDA_MEMORY_MIB_MIN), most_mb)
        parts.append(f"lambda.memory: {memory_mb}")
        element = element.with_entry(
            "lambda", block.with_entry("memory", text(memory_mb, entry.at))
        )
    if declared.get("enable_gpu") and element.entry("gpu") is None:
        parts.append("gpu: {count: 1}")
        count = Mapping(entries=(), at=entry.at, flow=True).with_entry("count", text(1, entry.at))
        element = element.with_entry("gpu", count)
    shown = " and ".join(parts)
    message = f"AWS Batch is not used; read as {shown}" if parts else "left out: no AWS Batch here"
    work.warn(f"{path}.batch", entry.at, message + _lost(declared, memory_mb, most_mb))
    return element


def _can_be_on_host(element: Mapping, block: Mapping, batch: Batch) -> bool:
    """Whether a function has a device, whose host may run its zip."""
    device = scalar_text(element.child("gpu")) != "none" and element.entry("gpu") is not None
    zipped = scalar_text(block.child("runtime")) != "image" and block.entry("layers") is None
    return zipped and (device or (element.entry("gpu") is None and bool(batch.get("enable_gpu"))))


def _place_of(
    work: Migration, element: Mapping, block: Mapping, mode: Entry, place: str, path: str
) -> Mapping:
    """The element with a place instead of SCAR's execution mode."""
    word, became = scalar_text(mode.value), place
    if place != "lambda":
        became = f"execution: {place}"
        element = element.with_entry("execution", text(place, mode.at))
    if word == "batch" and block.entry("timeout") is None:
        # Batch's jobs have no limit of their own; the longest run is the nearest
        timeout_s = LAMBDA_TIMEOUT_S_MAX if place == "lambda" else HOST_TIMEOUT_S_MAX
        block = block.with_entry("timeout", text(timeout_s, mode.at))
        became += f" with timeout: {timeout_s}"
    work.warn(f"{path}.lambda.execution_mode", mode.at, f"{word!r} is read as {became}")
    return element.with_entry("lambda", block)


def _lost(declared: Batch, memory_mb: int | None, most_mb: int) -> str:
    """The settings of a `batch` block that nothing here follows, as the end of a sentence.

    `memory_mb` is the function's memory where the block's became it.
    """
    found = []
    memory = declared.get("memory", _BATCH_MEMORY_MB)
    if memory > most_mb:
        found.append(f"memory: {memory} (Lambda has {LAMBDA_MEMORY_MIB_MAX} at most)")
    elif memory_mb is None and memory != _BATCH_MEMORY_MB:
        reason = "only `execution_mode: batch` uses it; write `lambda.memory`"
        found.append(f"memory: {memory} ({reason})")
    if declared.get("vcpus", 1) != 1:
        found.append(f"vcpus: {declared['vcpus']} (a function declares no processors)")
    nodes = declared.get("multi_node_parallel") or {}
    if nodes.get("enabled"):
        found.append("multi_node_parallel (a job runs in one function)")
    if declared.get("environment"):
        found.append("environment (write it as `container: {environment: …}`)")
    return f"; not carried over: {', '.join(found)}" if found else ""
