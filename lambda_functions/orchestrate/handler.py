"""The messages of job queues, the scheduler's wake-ups, and a call of every minute.

Lambda calls `handle` by an event source mapping; each call is a visit (`orchgpu/replica/visit.py`).
"""

from __future__ import annotations

from orchgpu.replica.visits import Visits

handle = Visits().handle
