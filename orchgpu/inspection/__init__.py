"""Checks of an AWS account for `orchgpu doctor --aws`, each a file of `checks`.

Only faults that a first deploy meets are looked for. All calls read; nothing here does I/O.
"""
