"""OSCAR's services, as far as a Lambda function can replace them."""

from __future__ import annotations

from corekit.units import parse_memory_mib
from fdl.keys.oscar import DELEGATED, OSCAR_SERVICE
from fdl.migrate.migration import Migration, elements_of, scalar_text, text, with_elements
from fdl.model import LAMBDA_MEMORY_MIB_MAX, LAMBDA_MEMORY_MIB_MIN, LAMBDA_TIMEOUT_S_MAX
from fdl.text.nodes import Entry, Mapping, Node, Scalar, Sequence


def services(work: Migration, root: Mapping) -> Mapping:
    """`functions.oscar` becomes elements of `functions.aws`, after the others."""
    root = _clusters(work, root)
    functions = root.child("functions")
    entry = functions.entry("oscar") if isinstance(functions, Mapping) else None
    if entry is None or not isinstance(functions, Mapping):
        return root
    if not isinstance(entry.value, Sequence):
        work.reading.fault(entry.value, "functions.oscar", "expected a list of {cluster: service}")
        return root.with_entry("functions", functions.without("oscar"))
    first = elements_of(functions)
    elements: list[Mapping] = []
    for index, item in enumerate(entry.value.items):
        for at, service in _services_of(item, f"functions.oscar[{index}]"):
            element = _element(work, at, service, f"functions.aws[{first + len(elements)}]")
            elements += [element] if element is not None else []
    functions = functions.without("oscar")
    return root.with_entry("functions", with_elements(functions, tuple(elements), entry.at))


def _clusters(work: Migration, root: Mapping) -> Mapping:
    """`clusters: {ID: {endpoint, auth_password}}` next to `functions`."""
    entry = root.entry("clusters")
    if entry is None:
        return root
    work.warn("clusters", entry.at, f"OSCAR's; left out: {DELEGATED}")
    return root.without("clusters")


def _services_of(item: Node, path: str) -> list[tuple[str, Entry]]:
    """`{cluster: {name, …}}`, or the service itself."""
    if not isinstance(item, Mapping):
        return [(path, Entry(key="", at=item.at, value=item))]
    if isinstance(item.child("name"), Scalar):
        return [(path, Entry(key="", at=item.at, value=item))]
    return [(f"{path}.{entry.key}", entry) for entry in item.entries]


def _element(work: Migration, origin: str, service: Entry, path: str) -> Mapping | None:
    """The element of a valid service; None, with its faults noted, for any other."""
    ignored = len(work.reading.ignored)
    valid = work.reading.accepts(OSCAR_SERVICE, service.value, origin)
    left_out = work.reading.ignored[ignored:]
    del work.reading.ignored[ignored:]  # a warning of this pass, not a note of lint too
    if not valid or not isinstance(service.value, Mapping):
        return None
    work.warn(origin, service.at, "an OSCAR service; read as a Lambda function")
    for inner, about in left_out:
        work.warn(inner, work.reading.locations[inner], f"left out: {about}")
    _move(work, path, origin)
    memory = service.value.entry("memory")
    size_mb = _memory_mb(service.value)
    if memory is not None and size_mb is not None and size_mb > LAMBDA_MEMORY_MIB_MAX:
        message = f"read as {LAMBDA_MEMORY_MIB_MAX} MB: Lambda has no more"
        work.warn(f"{origin}.memory", memory.at, message)
    return function_of_service(service.value)


def _move(work: Migration, path: str, origin: str) -> None:
    work.moved(path, origin)
    work.moved(f"{path}.lambda", origin)
    work.moved(f"{path}.lambda.container", origin)
    work.moved(f"{path}.lambda.init_script", f"{origin}.script")
    work.moved(f"{path}.gpu", f"{origin}.enable_gpu")
    work.moved(f"{path}.gpu.count", f"{origin}.enable_gpu")


def function_of_service(service: Mapping) -> Mapping:
    """The element of `functions.aws` that does what a valid service does.

    `enable_gpu` is one device.
    """
    block = Mapping(entries=(), at=service.at)
    for key, to in (("name", "name"), ("script", "init_script"), ("log_level", "log_level")):
        block = _taken(block, to, service.child(key))
    memory, size_mb = service.child("memory"), _memory_mb(service)
    if memory is not None and size_mb is not None:
        bounded_mb = min(max(size_mb, LAMBDA_MEMORY_MIB_MIN), LAMBDA_MEMORY_MIB_MAX)
        block = block.with_entry("memory", text(bounded_mb, memory.at))
    # OSCAR's jobs have no limit of their own; Lambda's longest run is the nearest
    block = block.with_entry("timeout", text(LAMBDA_TIMEOUT_S_MAX, service.at))
    container = _taken(Mapping(entries=(), at=service.at), "image", service.child("image"))
    container = _taken(container, "environment", _environment(service.child("environment")))
    if container.entries:
        block = block.with_entry("container", container)
    for key in ("input", "output"):
        block = _taken(block, key, service.child(key))
    element = Mapping(entries=(), at=service.at).with_entry("lambda", block)
    wants = service.child("enable_gpu")
    if (scalar_text(wants) or "").lower() in ("true", "yes", "on") and wants is not None:
        count = Mapping(entries=(), at=wants.at, flow=True).with_entry("count", text(1, wants.at))
        element = element.with_entry("gpu", count)
    return element


def _memory_mb(service: Mapping) -> int | None:
    memory = scalar_text(service.child("memory"))
    return None if memory is None else parse_memory_mib(memory)


def _taken(block: Mapping, key: str, value: Node | None) -> Mapping:
    return block if value is None else block.with_entry(key, value)


def _environment(node: Node | None) -> Node | None:
    """OSCAR writes `variables` where SCAR writes `Variables`."""
    if isinstance(node, Mapping) and node.entry("variables") is not None:
        variables = node.child("variables")
        assert variables is not None, "its entry is there"
        return node.with_entry("Variables", variables, instead_of="variables")
    return node
