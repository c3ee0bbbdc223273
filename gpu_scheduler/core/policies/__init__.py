"""Who goes next. A policy proposes over a read-only view; the machine checks and commits.

One small pure file per policy; `base` says what a policy is.
"""
