"""The input of an attempt, fetched while its function waits for a device that is not free yet.

A fetch that fails is forgotten: the attempt fetches its input itself, and reports why it cannot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from lambda_functions.gpu_runner.errors import AttemptFailed

LOG = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The start has nothing to do: its input is not needed."""


class Prefetch:
    """One fetch in a thread of its own, which begins with the first wait."""

    def __init__(self, fetch: Callable[[Callable[[], None]], Path]) -> None:
        """`fetch`: calls its argument for each part that it gets; that ends it."""
        self._fetch = fetch
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._found: Path | None = None

    def begin(self) -> None:
        """Begin to fetch, unless it has begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
            self._thread.start()

    def found(self) -> Path | None:
        """The input, once it is fetched; None: it was not begun, or failed."""
        if self._thread is not None:
            self._thread.join()
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._fetch(self._check)
        except (AttemptFailed, _StoppedError) as error:
            LOG.info("the input was not fetched ahead: %s", error)
        else:
            LOG.info("the input was fetched ahead")

    def _check(self) -> None:
        if self._stop.is_set():
            raise _StoppedError("the attempt is over")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
