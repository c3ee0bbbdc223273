"""The memory of a deciding policy: journalled values by name, with an index by kind and value.

A name may have the form `KIND/NAME`, such as `owner/` and a device. The index of a kind is made
when a policy first asks for it, and follows every change; replay makes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.protocol.changes import Scalar


@dataclass(slots=True)
class MemoryKind:
    """The values of one kind: by the rest of their names, and the names by value."""

    values: dict[str, Scalar] = field(default_factory=dict)
    names: dict[Scalar, dict[str, None]] = field(default_factory=dict)
    #: The availability version at which every name was a known device; None = not checked.
    known_at: int | None = None
    #: An index of the policy's own, and the names that changed since it was current; None = it has
    #: none.
    index: object | None = None
    changed: dict[str, None] | None = None

    def change(self, name: str, value: Scalar | None) -> None:
        """Replace a value, or remove it (None)."""
        if self.changed is not None:
            self.changed[name] = None
        old = self.values.pop(name, None)
        if old is not None:
            same = self.names[old]
            del same[name]
            if not same:
                del self.names[old]
        if value is not None:
            self.values[name] = value
            self.names.setdefault(value, {})[name] = None


@dataclass(slots=True)
class PolicyMemory:
    """The values that a deciding policy remembers, and the position in its seeded stream."""

    seed: str  #: of the stream
    draws: int = 0  #: numbers taken from the stream
    values: dict[str, Scalar] = field(default_factory=dict)
    _kinds: dict[str, MemoryKind] = field(default_factory=dict)  #: by prefix of the names

    def kind(self, prefix: str) -> MemoryKind:
        """The values whose names begin with this prefix, which ends with the first `/`."""
        found = self._kinds.get(prefix)
        if found is None:
            found = self._kinds[prefix] = MemoryKind()
            for name, value in self.values.items():
                if name.startswith(prefix):
                    found.change(name.removeprefix(prefix), value)
        return found

    def change(self, changed: Mapping[str, Scalar | None]) -> None:
        """Replace values, or remove them (None)."""
        for name, value in changed.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value
            kind, slash, rest = name.partition("/")
            of_kind = self._kinds.get(kind + slash)
            if of_kind is not None:
                of_kind.change(rest, value)
