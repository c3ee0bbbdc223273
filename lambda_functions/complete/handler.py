"""The messages of completion queues: results, reports, failures of functions, notices.

Lambda calls `handle` by an event source mapping; each call is a visit (`orchgpu/replica/visit.py`).
"""

from __future__ import annotations

from orchgpu.replica.visits import Visits

handle = Visits().handle
