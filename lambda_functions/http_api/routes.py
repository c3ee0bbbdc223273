"""Answers requests by their method and path; errors are answers too."""

from __future__ import annotations

import logging
import re

from contract.http_jobs import PREFIX
from contract.record import JsonObject
from lambda_functions.gpu_runner.errors import StorageError
from lambda_functions.http_api.jobs import Jobs
from lambda_functions.http_api.requests import Refused, Request, answered

logger = logging.getLogger(__name__)

_SUBMIT = re.compile(rf"{PREFIX}functions/(?P<function>[^/]+)/jobs")
_JOB = re.compile(rf"{PREFIX}jobs/(?P<job>[^/]+)(?P<outputs>/outputs(/(?P<name>.+))?)?")
_ELSEWHERE = "`orchgpu cancel` and `orchgpu logs` do more, and the console's API"


def answer(jobs: Jobs, event: JsonObject, ends_s: float) -> JsonObject:
    """The answer to one event; errors are answers too. Raises ValueError for another event."""
    try:
        return _routed(jobs, Request.of(event, ends_s))
    except Refused as error:
        return answered(error.body, error.status)
    except StorageError as error:
        logger.warning("%s", error)
        is_ours = 400 <= error.status < 500 and error.status != 429
        refused = Refused("internal" if is_ours else "unavailable", str(error))
        return answered(refused.body, refused.status)


def _routed(jobs: Jobs, request: Request) -> JsonObject:
    if match := _SUBMIT.fullmatch(request.path):
        _require(request, "POST")
        if match["function"] != jobs.served.function:
            text = f"this URL is of {jobs.served.function}, not of {match['function']!r:.80}"
            raise Refused("not_found", text)
        job, status = jobs.submitted(request)
        location = {"location": job["links"]["job"]} if "links" in job else {}
        return answered(job, status, **location)
    match = _JOB.fullmatch(request.path)
    if match is None:
        raise Refused("not_found", f"there is nothing at {request.path!r:.200}; {_ELSEWHERE}")
    _require(request, "GET")
    if match["name"]:
        return answered({}, 307, location=jobs.output_url(match["job"], match["name"]))
    if match["outputs"]:
        return answered({"outputs": jobs.outputs(match["job"], request)})
    return answered(jobs.job(match["job"], request))


def _require(request: Request, method: str) -> None:
    if request.method != method:
        text = f"{request.method} is not served here, only {method}; {_ELSEWHERE}"
        raise Refused("invalid", text, status=405)
