"""Inspection of an AWS account before and after a deploy: `orchgpu doctor --aws`.

Each check is one file in `checks`, found by presence: a pure generator that yields the read-only
calls it needs, gets AWS's answers, and returns findings. `orchgpu.adapters.aws.inspection` performs
the calls. A call that AWS refuses ends its check as unknown, with the name of the action.
"""
