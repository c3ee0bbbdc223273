"""Writes what every operation takes and gives into docs/reference/operations.md."""

from __future__ import annotations

from collections.abc import Iterator

from remote_gpu.worker.arguments import REQUIRED, Argument, Port
from remote_gpu.worker.operation import CpuOperation, Limits
from remote_gpu.worker.registry import first_word, load_registry
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "reference/operations.md"
_KINDS = ("cpu", "opencl", "cuda")


def table() -> str:
    """A section for each operation, by name."""
    registry = load_registry()
    by_name: dict[str, dict[str, CpuOperation]] = {}
    for operation in (one for kind in _KINDS for one in registry.registered(kind)):
        by_name.setdefault(operation.name, {})[first_word(operation)] = operation
    sections = (_section(list(found.values())) for _, found in sorted(by_name.items()))
    return "\n".join(line for section in sections for line in section)


def renewed(page: str) -> str:
    """The page with the sections as they must be."""
    return with_section(page, "operations", table() + "\n")


def _section(implementations: list[CpuOperation]) -> Iterator[str]:
    first = implementations[0]
    signature, limits = first.signature, first.limits
    yield f"\n### `{first.name}`\n"
    yield " ".join(str(type(first).__doc__).split()) + "\n"
    yield f"Implementations: {', '.join(_implementation(one) for one in implementations)}."
    yield _inputs(limits)
    yield f"Values: {signature.values or 'none'}."
    if signature.arguments:
        yield "\n| argument | must be | default | meaning |"
        yield "| --- | --- | --- | --- |"
        yield from (_argument(argument) for argument in signature.arguments)
    ports = [("in", port) for port in signature.inputs]
    ports += [("out", port) for port in signature.outputs]
    if ports:
        yield "\n| buffer | | dtype | shape | meaning |"
        yield "| --- | --- | --- | --- | --- |"
        yield from (_port(way, port) for way, port in ports)


def _inputs(limits: Limits) -> str:
    if not limits.inputs_max:
        return "Inputs: none."
    count = f"{limits.inputs_min}…{limits.inputs_max}"
    if limits.inputs_min == limits.inputs_max:
        count = str(limits.inputs_max)
    return f"Inputs: {count}, at most {_bytes(limits.input_bytes_max)} in all."


def _implementation(operation: CpuOperation) -> str:
    return f"`{first_word(operation)}` ({', '.join(operation.kinds)})"


def _argument(argument: Argument) -> str:
    default = "" if argument.default is REQUIRED else f"`{argument.default}`"
    return f"| `{argument.name}` | {argument.rule} | {default} | {argument.meaning} |"


def _port(way: str, port: Port) -> str:
    shape = f"`{port.shape}`" if port.shape and "`" not in port.shape else port.shape
    return f"| {port.name} | {way} | {port.dtype} | {shape} | {port.meaning} |"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count} bytes"


if __name__ == "__main__":
    renew(PAGE, renewed)
