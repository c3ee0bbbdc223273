"""Queue policies: the choice of the waiting request that is served next. One module per policy.

A module of this package with an object `POLICY` is discovered automatically; a policy of another
distribution is found by its entry point in the group `orchgpu.policies`
(`gpu_scheduler/policy_registry`).
A policy proposes over a view; the dispatcher checks and commits.
"""

from __future__ import annotations

#: The requests that a policy starves when smaller requests may overtake them.
LARGE = "requests for several devices or most of one, while smaller ones keep coming"

#: The cost of a decision that serves the first group that fits.
FIRST_FIT_COST = "a step for each size of request, and for each of up to 256 free devices"
#: The cost of a decision that compares the groups of tenant, workload and size that fit.
GROUPS_COST = (
    "a step for each group of tenant, workload and size that fits, and 256 for its devices"
)
