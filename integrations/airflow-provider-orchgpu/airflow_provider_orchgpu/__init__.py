"""Airflow tasks that are jobs of orchgpu's functions: `OrchgpuOperator` and its trigger."""

from __future__ import annotations

from typing import Any


def provider_info() -> dict[str, Any]:
    """The description of this provider, as Airflow reads it (`airflow providers list`)."""
    return {
        "package-name": "airflow-provider-orchgpu",
        "name": "orchgpu",
        "description": "Jobs of functions that have GPUs lent for one job.",
        "versions": ["0.1.0"],
    }
