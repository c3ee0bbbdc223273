"""Ids of jobs, whole or by a prefix that only one of them has."""

from __future__ import annotations

import re

#: `contract.keys.job_id`
JOB_ID = re.compile("j[0-9a-f]{25}")
