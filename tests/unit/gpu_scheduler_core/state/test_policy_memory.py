"""The memory of a policy: the index by kind and value follows every change."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.state.policy_memory import MemoryKind, PolicyMemory
from gpu_scheduler.protocol.changes import Scalar

NAMES = st.sampled_from(["owner/a", "owner/b", "owner/c/d", "before/a", "owner", "last"])
CHANGES = st.dictionaries(NAMES, st.none() | st.sampled_from(["x", "y", 1.5]), max_size=4)


def scanned(values: Mapping[str, Scalar], prefix: str) -> MemoryKind:
    """The index of a kind, made from all values."""
    found = MemoryKind()
    for name, value in values.items():
        if name.startswith(prefix):
            found.change(name.removeprefix(prefix), value)
    return found


@given(st.lists(CHANGES, max_size=8), st.integers(0, 8))
def test_the_index_is_that_of_the_values(changes: list[dict[str, Scalar | None]], at: int) -> None:
    """Whether it is made before, between or after the changes."""
    memory = PolicyMemory("seed")
    for number, changed in enumerate(changes):
        if number == at:
            memory.kind("owner/")
        memory.change(changed)
    expected = scanned(memory.values, "owner/")
    assert memory.kind("owner/").values == expected.values
    assert memory.kind("owner/").names == expected.names


def test_replayed_memory_has_the_same_index() -> None:
    memory = PolicyMemory("seed")
    memory.kind("owner/")
    memory.change({"owner/a": "x", "owner/b": "x"})
    memory.change({"owner/a": "y", "owner/b": None})
    replayed = PolicyMemory("seed")
    replayed.change(memory.values)
    assert replayed.kind("owner/").names == {"y": {"a": None}} == memory.kind("owner/").names
