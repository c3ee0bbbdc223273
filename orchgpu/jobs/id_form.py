"""The form of a job's id, as `contract.keys.job_id` makes it. Pure."""

from __future__ import annotations

import re

JOB_ID = re.compile("j[0-9a-f]{25}")
