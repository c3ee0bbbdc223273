"""Pauses between tries, with jitter: peers that failed together do not try again together."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `first_s` up to `most_s`, each shortened at random by up to half."""

    def __init__(self, first_s: float, most_s: float, jitter: random.Random | None = None) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._jitter = jitter or random.Random()
        self._ceiling_s = first_s

    def next_s(self) -> float:
        """The pause before the next try."""
        ceiling_s = min(self._ceiling_s, self._most_s)
        self._ceiling_s = 2 * ceiling_s
        return ceiling_s * self._jitter.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin with the shortest pause again: a try succeeded."""
        self._ceiling_s = self._first_s
