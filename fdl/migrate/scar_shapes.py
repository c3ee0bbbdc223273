"""The shapes of SCAR's files before `functions: {aws: [{lambda: …}]}`.

Of 2018: `functions: {NAME: {image, time, s3: {input_bucket}, environment: {KEY: value}}}`, with
the call's own arguments next to them. Of 2019: a list of functions, `storages:` and paths that name
one of them. Sources: the history of grycap/scar (src/parser/yaml.py, docs/source/prog_model.rst,
scar/parser/fdl2.yaml).
"""

from __future__ import annotations

from corekit.values import replace
from fdl.keys.scar import LAMBDA, OLD_PLACES
from fdl.migrate.migration import Migration, elements_of, scalar_text, text, with_elements
from fdl.text.nodes import Entry, Location, Mapping, Node, Sequence

#: Blocks that were among a function's own keys and are siblings of `lambda` now.
_SIBLINGS = ("iam", "cloudwatch", "s3", "api_gateway", "batch", "ecr", "gpu", "job", "group")
#: Keys with another name now.
_RENAMED = {"time": "timeout", "profile": "boto_profile"}
#: Arguments of one call of SCAR (`scar invoke`, `run`, `log`), which its files could hold too.
_OF_A_CALL = ("log_stream_name", "request_id", "data_binary", "c_args", "output_file")
_OWN_WORDS = ("image", "image_file", "timeout_threshold", "lambda_role", "lambda")


# ---------------------------------------------------------------------- the file as a whole


def named_storages(work: Migration, root: Mapping) -> Mapping:
    """`storages:`, the oldest list of storage providers, in each of its shapes."""
    entry = root.entry("storages")
    if entry is None:
        return root
    _note_storages(work, entry.value, "")
    message = "an older shape; left out: all storage is in S3, reached by the function's role"
    work.warn("storages", entry.at, message)
    return root.without("storages")


def _note_storages(work: Migration, node: Node, kind: str) -> None:
    """`[{name, type}]`, `{minio: [{name}]}`, `[{minio: [{name}]}]`: name → type."""
    for item in node.items if isinstance(node, Sequence) else ():
        name = scalar_text(item.child("name")) if isinstance(item, Mapping) else None
        if name is None:
            _note_storages(work, item, kind)
        elif isinstance(item, Mapping):
            work.storages[name] = (kind or scalar_text(item.child("type")) or "s3").lower()
    for entry in node.entries if isinstance(node, Mapping) else ():
        _note_storages(work, entry.value, entry.key)


def shape_of_functions(work: Migration, root: Mapping) -> Mapping:
    """`functions` as a list, or with names for keys, becomes `functions: {aws: [{lambda: …}]}`."""
    entry = root.entry("functions")
    functions = entry.value if entry is not None else None
    if isinstance(functions, Sequence):
        return root.with_entry("functions", _of_list(work, functions))
    if not isinstance(functions, Mapping):
        return root
    named = [e for e in functions.entries if _is_named_function(e)]
    if not named:
        return root
    first = elements_of(functions)
    elements = tuple(
        _element_of_name(work, inner, f"functions.aws[{first + n}]")
        for n, inner in enumerate(named)
    )
    rest = functions.without(*(e.key for e in named))
    return root.with_entry("functions", with_elements(rest, elements, named[0].at))


def _of_list(work: Migration, functions: Sequence) -> Mapping:
    """`[{name, …}]`, `[{lambda: …}]` or `[{aws: [{name, …}]}]`."""
    work.warn("functions", functions.at, "a list is an older shape; read as functions.aws")
    found: list[tuple[str, Node]] = []
    for index, item in enumerate(functions.items):
        inner = item.child("aws") if isinstance(item, Mapping) else None
        if isinstance(inner, Sequence):
            origin = f"functions[{index}].aws"
            found += [(f"{origin}[{n}]", child) for n, child in enumerate(inner.items)]
        else:
            found.append((f"functions[{index}]", item))
    items = tuple(
        _element_of_item(work, item, origin, f"functions.aws[{n}]")
        for n, (origin, item) in enumerate(found)
    )
    aws = replace(functions, items=items)
    return Mapping(entries=(), at=functions.at).with_entry("aws", aws)


def _element_of_item(work: Migration, item: Node, origin: str, path: str) -> Node:
    work.moved(path, origin)
    if not isinstance(item, Mapping) or item.entry("lambda") is not None:
        return item
    work.moved(f"{path}.lambda", origin)
    return _element_of_flat(work, item, path)


def _is_named_function(entry: Entry) -> bool:
    """`my-function: {lambda: …}`, or `my-function: {memory: …}` straight away."""
    if entry.key in ("aws", "oscar") or not isinstance(entry.value, Mapping):
        return False
    known = (*LAMBDA.keys, *_SIBLINGS, *_RENAMED, *_OF_A_CALL, *_OWN_WORDS)
    return any(inner.key.rstrip('"') in known for inner in entry.value.entries)


def _element_of_name(work: Migration, entry: Entry, path: str) -> Node:
    origin = f"functions.{entry.key}"
    work.warn(origin, entry.at, "an older shape; read as functions.aws[].lambda")
    work.moved(path, origin)
    body = entry.value
    assert isinstance(body, Mapping), "_is_named_function looked"
    inner = body.child("lambda")
    if isinstance(inner, Mapping):
        return body.with_entry("lambda", _with_name(inner, entry))
    work.moved(f"{path}.lambda", origin)
    return _element_of_flat(work, _with_name(body, entry), path)


def _with_name(block: Mapping, entry: Entry) -> Mapping:
    if block.entry("name") is not None:
        return block
    name = Entry(key="name", at=entry.at, value=text(entry.key, entry.at))
    return replace(block, entries=(name, *block.entries))


# ---------------------------------------------------------------------- one function of that time


def _element_of_flat(work: Migration, body: Mapping, path: str) -> Mapping:
    """A function whose own keys and blocks stand side by side."""
    siblings = [entry for entry in body.entries if entry.key in _SIBLINGS]
    block = body.without(*(entry.key for entry in siblings))
    block = _of_today(work, block, f"{path}.lambda")
    role = block.entry("lambda_role")
    element = Mapping(entries=(), at=body.at, flow=body.flow)
    element = element.with_entry("lambda", block.without("lambda_role"))
    for entry in siblings:
        element = replace(element, entries=(*element.entries, entry))
    if role is not None and element.entry("iam") is None:
        work.warn(f"{path}.lambda.lambda_role", role.at, "an older key; read as iam.role")
        work.moved(f"{path}.iam.role", f"{path}.lambda.lambda_role")
        iam = Mapping(entries=(), at=role.at, flow=True).with_entry("role", role.value)
        element = element.with_entry("iam", iam)
    return element


def _of_today(work: Migration, block: Mapping, path: str) -> Mapping:
    for old, new in _RENAMED.items():
        entry = block.entry(old)
        if entry is not None and block.entry(new) is None:
            work.warn(f"{path}.{old}", entry.at, f"an older key; read as {new}")
            work.moved(f"{path}.{new}", f"{path}.{old}")
            block = block.with_entry(new, entry.value, instead_of=old)
    for key in _OF_A_CALL:
        entry = block.entry(key)
        if entry is not None:
            message = "left out: an argument of one call of SCAR, not of the function"
            work.warn(f"{path}.{key}", entry.at, message)
            block = block.without(key)
    return _variables(work, block, path)


def _variables(work: Migration, block: Mapping, path: str) -> Mapping:
    """`environment: {KEY: value}` was the script's, as `container.environment` is now."""
    entry = block.entry("environment")
    if (
        entry is None
        or not isinstance(entry.value, Mapping)
        or entry.value.entry("Variables") is not None
    ):
        return block
    if duplicated(work, block, "environment", f"{path}.environment"):
        return block.without("environment")
    message = "an older shape; read as container.environment.Variables"
    work.warn(f"{path}.environment", entry.at, message)
    inner = f"{path}.container.environment"
    work.moved(inner, f"{path}.environment")
    work.moved(f"{inner}.Variables", f"{path}.environment")
    variables = Mapping(entries=(), at=entry.at).with_entry("Variables", entry.value)
    return into_container(block, "environment", variables, instead_of="environment")


def duplicated(work: Migration, block: Mapping, key: str, path: str) -> bool:
    """Whether the container has a key that is to move there; noted as a fault."""
    container, entry = block.child("container"), block.entry(key)
    if entry is None or not isinstance(container, Mapping) or container.entry(key) is None:
        return False
    work.reading.fault(entry.value, path, f"container.{key} is given too; keep that one")
    return True


def into_container(block: Mapping, key: str, value: Node, *, instead_of: str) -> Mapping:
    """A value that stood among the function's keys, in its `container` block."""
    container = block.child("container")
    if isinstance(container, Mapping):
        return block.without(instead_of).with_entry("container", container.with_entry(key, value))
    inner = Mapping(entries=(), at=value.at, flow=block.flow).with_entry(key, value)
    return block.with_entry("container", inner, instead_of=instead_of)


# ---------------------------------------------------------------------- places of that time


def old_places(work: Migration, element: Mapping, path: str) -> Mapping:
    """`s3: {input_bucket, input_folder, output_bucket, output_folder, deployment_bucket}`."""
    entry, block = element.entry("s3"), element.child("lambda")
    declared = entry.value if entry is not None else None
    if entry is None or not isinstance(declared, Mapping) or not isinstance(block, Mapping):
        return element
    found = [inner for inner in declared.entries if inner.key in OLD_PLACES]
    if not found:
        return element
    texts: dict[str, str] = {}
    for inner in found:
        name = scalar_text(inner.value)
        if name is None:
            at = f"{path}.s3.{inner.key}"
            work.reading.fault(inner.value, at, "expected the name of a bucket or folder")
        else:
            texts[inner.key] = name.strip("/")
    name = scalar_text(block.child("name")) or "function"
    wanted = _paths(texts, name)
    for key, value in wanted.items():
        block = _with_place(work, block, key, value, entry, path)
    shown = ", ".join(f"{key}: [{{path: {value}}}]" for key, value in wanted.items())
    if "deployment_bucket" in texts:
        bucket = text(texts["deployment_bucket"], entry.at)
        deployment = Mapping(entries=(), at=entry.at, flow=True).with_entry("bucket", bucket)
        block = block.with_entry("deployment", deployment)
        work.moved(f"{path}.lambda.deployment.bucket", f"{path}.s3.deployment_bucket")
        shown = ", ".join(filter(None, (shown, f"deployment: {{bucket: {bucket.text}}}")))
    work.warn(f"{path}.s3", entry.at, f"an older shape; read as {shown or 'nothing'}")
    rest = declared.without(*OLD_PLACES)
    element = element.with_entry("lambda", block)
    return element.with_entry("s3", rest) if rest.entries else element.without("s3")


def _paths(texts: dict[str, str], name: str) -> dict[str, str]:
    """`input` and `output` by SCAR's convention: a folder of the function's name has both."""
    paths = {}
    into, out = texts.get("input_bucket"), texts.get("output_bucket")
    if into is not None:
        paths["input"] = _joined(into, texts.get("input_folder"), f"{name}/input")
    if out is not None:
        paths["output"] = _joined(out, texts.get("output_folder"), f"{name}/output")
    elif into is not None:
        bucket = into.partition("/")[0]
        paths["output"] = _joined(bucket, texts.get("output_folder"), f"{name}/output")
    return paths


def _joined(bucket: str, folder: str | None, otherwise: str) -> str:
    if folder:
        return f"{bucket}/{folder}"
    return bucket if "/" in bucket else f"{bucket}/{otherwise}"


def _with_place(
    work: Migration, block: Mapping, key: str, value: str, entry: Entry, path: str
) -> Mapping:
    if block.entry(key) is not None:
        message = f"{key}_bucket and `{key}` are both given; keep `{key}`"
        work.reading.fault(entry.value, f"{path}.s3", message)
        return block
    written = _written_bucket(entry, key)
    at = _at_of(entry, written)
    place = Mapping(entries=(), at=at, flow=True).with_entry("path", text(value, at))
    work.moved(f"{path}.lambda.{key}", f"{path}.s3")
    work.moved(f"{path}.lambda.{key}[0].path", f"{path}.s3.{written}")
    return block.with_entry(key, Sequence(items=(place,), at=at, flow=True))


def _written_bucket(entry: Entry, key: str) -> str:
    """The key that names the bucket of `key`: outputs default to the bucket of inputs."""
    own = f"{key}_bucket"
    value = entry.value
    return own if isinstance(value, Mapping) and value.entry(own) is not None else "input_bucket"


def _at_of(entry: Entry, key: str) -> Location:
    inner = entry.value.entry(key) if isinstance(entry.value, Mapping) else None
    return inner.value.at if inner is not None else entry.at


def old_place(work: Migration, place: Node, path: str) -> Node:
    """`{name, path, files: {sufix, prefix}}` → `{storage_provider, path, suffix, prefix}`."""
    if not isinstance(place, Mapping):
        return place
    for key in ("name", "storage_name", "storage"):
        name = scalar_text(place.child(key))
        if name is not None and place.entry("storage_provider") is None:
            kind = work.storages.get(name, name if name in ("minio", "onedata") else "s3")
            provider = text(kind if kind in ("s3", name) else f"{kind}.{name}", place.at)
            place = place.with_entry("storage_provider", provider, instead_of=key)
            work.moved(f"{path}.storage_provider", f"{path}.{key}")
    files = place.child("files")
    if isinstance(files, Mapping):
        place = place.without("files")
        for entry in files.entries:
            key = "suffix" if entry.key == "sufix" else entry.key
            work.moved(f"{path}.{key}", f"{path}.files.{entry.key}")
            place = place.with_entry(key, entry.value)
    return place
