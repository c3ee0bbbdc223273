"""The data sets and programs of the host that the calls of one lane used, for answers."""

from __future__ import annotations

from remote_gpu.wire.uses import HOST_KINDS, Uses


class LaneUses:
    """Collects uses; each is reported once. Not thread-safe: a lane has one thread."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in HOST_KINDS}
        self._new: dict[str, dict[str, str]] = {}

    def add(self, kind: str, name: str, sha256: str) -> None:
        """A call used this content; "" = its digest is not known, unless an earlier call knew."""
        known = self._known[kind].get(name)
        if known is None or sha256 not in ("", known):
            self._known[kind][name] = sha256
            self._new.setdefault(kind, {})[name] = sha256

    def take(self) -> Uses | None:
        """The uses that no answer has had yet; None without any."""
        if not self._new:
            return None
        new, self._new = self._new, {}
        return new
