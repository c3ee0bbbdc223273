"""Who goes next. A policy proposes over a read-only view; the machine checks and commits.

One small pure file per policy; `base` says what a policy is.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.core.policies.backfill import Backfill
from gpu_scheduler.core.policies.base import Policy
from gpu_scheduler.core.policies.fair import Fair
from gpu_scheduler.core.policies.fifo import Fifo
from gpu_scheduler.parameters import str

POLICIES: Mapping[str, Policy] = {
    str.FIFO: Fifo(),
    str.BACKFILL: Backfill(),
    str.FAIR: Fair(),
}
