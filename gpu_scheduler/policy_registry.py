"""Queue policies that are installed: modules of `core/policies`, entry points `orchgpu.policies`.

The core does not import this module: the maker of a `SchedulerMachine` passes the policies to it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from corekit.plugins import find_plugins
from gpu_scheduler.core.queue.policy import Policy
from gpu_scheduler.parameters import DEFAULT_POLICY, POLICY_PLUGINS

logger = logging.getLogger(__name__)


def installed_policies() -> Mapping[str, Policy]:
    """Every policy by name, the default one first.

    An entry point of another package that cannot be loaded is left out with a warning.
    """
    points = find_plugins(*POLICY_PLUGINS)
    found: dict[str, Policy] = {}
    for name in sorted(points, key=lambda name: (name != DEFAULT_POLICY, name)):
        point = points[name]
        try:
            policy = point.load()
        except Exception as error:
            _left_out(name, point.value, f"{type(error).__name__}: {error}")
            continue
        if isinstance(policy, Policy):
            found[name] = policy
        else:
            why = f"{policy!r:.80} does not derive from `gpu_scheduler.api.Policy`"
            _left_out(name, point.value, why)
    return found


def _left_out(name: str, value: str, why: str) -> None:
    text = "queue policy %s (%s) is not available: %s"
    logger.warning(text, name, value, why, extra={"event": "policy_left_out"})
