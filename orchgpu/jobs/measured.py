"""The measured run of a job, from which its cost follows."""

from __future__ import annotations

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import Known


def measured_run(cloud: JobCloud, known: Known) -> tuple[float, int]:
    """The function's time for the job, from start to result, and the function's memory in MiB.

    Raises INVALID for a job that did not succeed, NOT_FOUND without its function.
    """
    times = known.standing.times if known.standing is not None else {}
    if known.state != "SUCCEEDED" or not {"EStart", "committed"} <= set(times):
        raise invalid(
            f"{known.job} is {known.state}: only a job that succeeded has a measured time"
        )
    if known.function is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    settings = cloud.services.function_settings(known.function.name)
    return times["committed"] - times["EStart"], settings.memory_mib
