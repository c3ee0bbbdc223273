"""Older shapes and foreign blocks, rewritten into what this program does; nodes to nodes.

What `orchgpu fdl migrate` prints is exactly what a deploy reads: there is one translation. Every
rewrite is told as a warning with its place. A file that needs none stays as it is, node for node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fdl.keys_scar import BATCH, LAMBDA, STORAGE_PROVIDERS
from fdl.migrate_oscar import OSCAR_SERVICE, function_of_service
from fdl.model import DEFAULT_RUNTIME, RETIRED_RUNTIMES, Rewrite
from fdl.nodes import Entry, Location, Mapping, Node, Scalar, Sequence
from fdl.schema import Reading

#: Batch's jobs have no limit of their own; Lambda's longest run is the nearest.
_TIMEOUT_S_MAX = 900
_MEMORY_MB_MIN, _MEMORY_MB_MAX = 128, 10240
#: Kinds of S3 by name; every other provider's places are taken in S3 too, and that is told.
_S3 = ("s3", "s3.default")
_TRANSLATED_PROVIDERS = ("s3", "minio", "onedata")


def migrate(root: Node, reading: Reading) -> tuple[Node, tuple[Rewrite, ...]]:
    """The file as it is read, and what was rewritten; faults in what goes away are noted."""
    if not isinstance(root, Mapping):
        return root, ()
    work = _Migration(reading=reading)
    for step in (_named_storages, _shape_of_functions, _oscar, _functions, _providers):
        root = step(work, root)
    return root, tuple(work.rewrites)


@dataclass(slots=True)
class _Migration:
    """One pass over one file."""

    reading: Reading
    rewrites: list[Rewrite] = field(default_factory=list)
    #: Name of an old `storages:` entry → its type.
    storages: dict[str, str] = field(default_factory=dict)

    def tell(self, path: str, at: Location, message: str) -> None:
        self.rewrites.append(Rewrite(path=path, at=at, message=message))


def text(value: object, at: Location) -> Scalar:
    """A plain scalar that a rewrite puts in."""
    return Scalar(text=str(value), plain=True, at=at)


def _scalar_text(node: Node | None) -> str | None:
    return node.text if isinstance(node, Scalar) and not node.is_null else None


# ---------------------------------------------------------------------- the file as a whole


def _named_storages(work: _Migration, root: Mapping) -> Mapping:
    """`storages: [{name, type, auth}]`, the oldest way to name places outside the function."""
    entry = root.entry("storages")
    if entry is None:
        return root
    for item in entry.value.items if isinstance(entry.value, Sequence) else ():
        if isinstance(item, Mapping):
            name, kind = _scalar_text(item.child("name")), _scalar_text(item.child("type"))
            work.storages[name or ""] = (kind or "s3").lower()
    work.tell("storages", entry.at, "an older shape; left out: places are in S3 by the role")
    return root.without("storages")


def _shape_of_functions(work: _Migration, root: Mapping) -> Mapping:
    """`functions` as a list, or with names for keys, becomes `functions: {aws: [{lambda: …}]}`."""
    entry = root.entry("functions")
    functions = entry.value if entry is not None else None
    if isinstance(functions, Sequence):
        message = "a list is an older shape; read as functions.aws"
        work.tell("functions", functions.at, message)
        items = tuple(_element_of(work, item) for item in functions.items)
        aws = replace(functions, items=items)
        return root.having("functions", Mapping(entries=(), at=functions.at).having("aws", aws))
    if not isinstance(functions, Mapping):
        return root
    named = [e for e in functions.entries if _is_named_function(e)]
    if not named:
        return root
    elements = tuple(_element_of_name(work, entry) for entry in named)
    rest = functions.without(*(e.key for e in named))
    return root.having("functions", _with_elements(rest, elements, named[0].at))


def _is_named_function(entry: Entry) -> bool:
    """`my-function: {lambda: …}`, or `my-function: {memory: …}` straight away."""
    if entry.key in ("aws", "oscar") or not isinstance(entry.value, Mapping):
        return False
    keys = [inner.key for inner in entry.value.entries if not inner.key.startswith("x-")]
    known = (*LAMBDA.keys, "image")
    return "lambda" in keys or (bool(keys) and all(key in known for key in keys))


def _element_of_name(work: _Migration, entry: Entry) -> Node:
    work.tell(f"functions.{entry.key}", entry.at, "an older shape; read as functions.aws[].lambda")
    body = entry.value
    assert isinstance(body, Mapping), "_is_named_function looked"
    inner = body.child("lambda")
    block = inner if isinstance(inner, Mapping) else body
    if block.entry("name") is None:
        name = Entry(key="name", at=entry.at, value=text(entry.key, entry.at))
        block = replace(block, entries=(name, *block.entries))
    if body.entry("lambda") is None:
        return Mapping(entries=(), at=entry.at, flow=body.flow).having("lambda", block)
    return body.having("lambda", block)


def _element_of(work: _Migration, item: Node) -> Node:
    """One function of the oldest shape: `{name, input: [{name, path}], output: [{files}]}`."""
    if not isinstance(item, Mapping) or item.entry("lambda") is not None:
        return item
    return Mapping(entries=(), at=item.at, flow=item.flow).having(
        "lambda", _old_storages(work, item)
    )


def _old_storages(work: _Migration, block: Mapping) -> Mapping:
    for key in ("input", "output"):
        places = block.child(key)
        if isinstance(places, Sequence):
            items = tuple(_old_storage(work, place) for place in places.items)
            block = block.having(key, replace(places, items=items))
    return block


def _old_storage(work: _Migration, place: Node) -> Node:
    """`{name, path, files: {sufix, prefix}}` → `{storage_provider, path, suffix, prefix}`."""
    if not isinstance(place, Mapping):
        return place
    name = _scalar_text(place.child("name"))
    if name is not None and place.entry("storage_provider") is None:
        kind = work.storages.get(name, "s3")
        provider = text("s3" if kind == "s3" else f"{kind}.{name}", place.at)
        place = place.having("storage_provider", provider, instead_of="name")
    files = place.child("files")
    if isinstance(files, Mapping):
        place = place.without("files")
        for entry in files.entries:
            place = place.having("suffix" if entry.key == "sufix" else entry.key, entry.value)
    return place


def _with_elements(functions: Mapping, elements: tuple[Node, ...], at: Location) -> Mapping:
    """`functions` with more elements under `aws`."""
    aws = functions.child("aws")
    if isinstance(aws, Sequence):
        return functions.having("aws", replace(aws, items=(*aws.items, *elements)))
    return functions.having("aws", Sequence(items=elements, at=at))


def _oscar(work: _Migration, root: Mapping) -> Mapping:
    """OSCAR's services become Lambda functions beside the others."""
    functions = root.child("functions")
    entry = functions.entry("oscar") if isinstance(functions, Mapping) else None
    if entry is None or not isinstance(functions, Mapping):
        return root
    if not isinstance(entry.value, Sequence):
        work.reading.fault(entry.value, "functions.oscar", "expected a list of {cluster: service}")
        return root.having("functions", functions.without("oscar"))
    elements = []
    for index, item in enumerate(entry.value.items):
        for service in item.entries if isinstance(item, Mapping) else ():
            path = f"functions.oscar[{index}].{service.key}"
            if isinstance(service.value, Mapping) and work.reading.passes(
                OSCAR_SERVICE, service.value, path
            ):
                work.tell(path, service.at, "an OSCAR service; read as a Lambda function")
                elements.append(function_of_service(service.value))
    functions = functions.without("oscar")
    return root.having("functions", _with_elements(functions, tuple(elements), entry.at))


def _providers(work: _Migration, root: Mapping) -> Mapping:
    entry = root.entry("storage_providers")
    if entry is None:
        return root
    named = _providers_by_name(entry.value)
    if not work.reading.passes(STORAGE_PROVIDERS, named, "storage_providers"):
        return root.without("storage_providers")
    message = (
        "left out: every place is in S3, reached by the function's role;"
        " credentials in clear are never sent anywhere, and are better not in a file"
    )
    work.tell("storage_providers", entry.at, message)
    return root.without("storage_providers")


def _providers_by_name(providers: Node) -> Node:
    """`s3: [{name: …}]` is an older way to write `s3: {…: {}}`."""
    if not isinstance(providers, Mapping):
        return providers
    for entry in providers.entries:
        if isinstance(entry.value, Sequence):
            named = tuple(
                Entry(
                    key=_scalar_text(item.child("name")) or f"{number}",
                    at=item.at,
                    value=item.without("name", "auth", "type"),
                )
                for number, item in enumerate(entry.value.items)
                if isinstance(item, Mapping)
            )
            providers = providers.having(entry.key, Mapping(entries=named, at=entry.value.at))
    return providers


# ---------------------------------------------------------------------- one function


def _functions(work: _Migration, root: Mapping) -> Mapping:
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
    return root.having("functions", functions.having("aws", replace(aws, items=items)))


def _element(work: _Migration, element: Mapping, path: str) -> Mapping:
    block = element.child("lambda")
    if isinstance(block, Mapping):
        steps: tuple[Callable[[_Migration, Mapping, str], Mapping], ...] = (
            _stray_quotes, _image, _words, _run_script, _places,
        )  # fmt: skip
        changed = block
        for step in steps:
            changed = step(work, changed, f"{path}.lambda")
        if changed is not block:
            element = element.having("lambda", changed)
    element = _batch(work, element, path)
    api = element.entry("api_gateway")
    if api is not None:
        message = "left out: no API is created; objects in `input` start the function"
        work.tell(f"{path}.api_gateway", api.at, message)
        element = element.without("api_gateway")
    return element


def _stray_quotes(work: _Migration, block: Mapping, path: str) -> Mapping:
    """`timeout_threshold": 10`, as in SCAR's own commented example."""
    for entry in block.entries:
        inner = f"{path}.{entry.key}"
        if entry.key.endswith('"'):
            clean = entry.key.rstrip('"')
            work.tell(inner, entry.at, f"a stray quote; read as {clean}")
            block = block.having(clean, entry.value, instead_of=entry.key)
        elif entry.key == "container" and isinstance(entry.value, Mapping):
            changed = _stray_quotes(work, entry.value, inner)
            block = block if changed is entry.value else block.having(entry.key, changed)
    return block


def _image(work: _Migration, block: Mapping, path: str) -> Mapping:
    entry = block.entry("image")
    if entry is None:
        return block
    work.tell(f"{path}.image", entry.at, "an older shape; read as container.image")
    container = block.child("container")
    if isinstance(container, Mapping):
        return block.without("image").having("container", container.having("image", entry.value))
    inner = Mapping(entries=(), at=entry.at, flow=block.flow).having("image", entry.value)
    return block.having("container", inner, instead_of="image")


def _words(work: _Migration, block: Mapping, path: str) -> Mapping:
    """Words that changed: a lower-case log level, a runtime that AWS has retired."""
    level = block.entry("log_level")
    word = _scalar_text(level.value) if level is not None else None
    if level is not None and word is not None and word != word.upper():
        work.tell(f"{path}.log_level", level.at, f"read as {word.upper()}")
        block = block.having("log_level", text(word.upper(), level.value.at))
    runtime = block.entry("runtime")
    if runtime is not None and _scalar_text(runtime.value) in RETIRED_RUNTIMES:
        message = f"{_scalar_text(runtime.value)} is retired by AWS; read as {DEFAULT_RUNTIME}"
        work.tell(f"{path}.runtime", runtime.at, message)
        block = block.having("runtime", text(DEFAULT_RUNTIME, runtime.value.at))
    return block


def _run_script(work: _Migration, block: Mapping, path: str) -> Mapping:
    """SCAR sends it with each `scar run`; here the function holds its one script."""
    entry = block.entry("run_script")
    if entry is None:
        return block
    if _scalar_text(block.child("init_script")) is not None:
        work.tell(f"{path}.run_script", entry.at, "left out: init_script is what runs")
        return block.without("run_script")
    work.tell(f"{path}.run_script", entry.at, "read as init_script: the function holds its script")
    return block.without("init_script").having("init_script", entry.value, instead_of="run_script")


def _places(work: _Migration, block: Mapping, path: str) -> Mapping:
    for key in ("input", "output"):
        places = block.child(key)
        if not isinstance(places, Sequence):
            continue
        items = tuple(
            _place(work, item, f"{path}.{key}[{index}]") for index, item in enumerate(places.items)
        )
        if any(new is not old for new, old in zip(items, places.items, strict=True)):
            block = block.having(key, replace(places, items=items))
    return block


def _place(work: _Migration, place: Node, path: str) -> Node:
    """Another provider's place is taken in S3, at the same path."""
    entry = place.entry("storage_provider") if isinstance(place, Mapping) else None
    name = _scalar_text(entry.value) if entry is not None else None
    if entry is None or name is None or name in _S3 or not isinstance(place, Mapping):
        return place
    if name.partition(".")[0] not in _TRANSLATED_PROVIDERS:
        return place
    where = "with the function's role" if name.startswith("s3.") else "at the same path"
    work.tell(f"{path}.storage_provider", entry.at, f"{name} is not served; read as s3 {where}")
    return place.having("storage_provider", text("s3", entry.value.at))


def _batch(work: _Migration, element: Mapping, path: str) -> Mapping:
    """AWS Batch was SCAR's way to more time, memory or a GPU: Lambda and a lent device do it."""
    block = element.child("lambda")
    mode = block.entry("execution_mode") if isinstance(block, Mapping) else None
    word = _scalar_text(mode.value) if mode is not None else None
    if mode is not None and isinstance(block, Mapping) and word in ("batch", "lambda-batch"):
        block, became = block.without("execution_mode"), "lambda"
        if word == "batch" and block.entry("timeout") is None:
            block = block.having("timeout", text(_TIMEOUT_S_MAX, mode.at))
            became = f"lambda with timeout: {_TIMEOUT_S_MAX}"
        work.tell(f"{path}.lambda.execution_mode", mode.at, f"{word!r} is read as {became}")
        element = element.having("lambda", block)
    entry = element.entry("batch")
    if entry is None:
        return element
    declared = work.reading.value(BATCH, entry.value, f"{path}.batch") or {}
    element = element.without("batch")
    parts = []
    if word == "batch" and "memory" in declared and isinstance(block, Mapping):
        memory_mb = min(max(declared["memory"], _MEMORY_MB_MIN), _MEMORY_MB_MAX)
        parts.append(f"lambda.memory: {memory_mb}")
        element = element.having("lambda", block.having("memory", text(memory_mb, entry.at)))
    if declared.get("enable_gpu") and element.entry("gpu") is None:
        parts.append("gpu: {count: 1}")
        count = Mapping(entries=(), at=entry.at, flow=True).having("count", text(1, entry.at))
        element = element.having("gpu", count)
    shown = " and ".join(parts)
    message = f"AWS Batch is not used; read as {shown}" if parts else "left out: no AWS Batch here"
    work.tell(f"{path}.batch", entry.at, message)
    return element
