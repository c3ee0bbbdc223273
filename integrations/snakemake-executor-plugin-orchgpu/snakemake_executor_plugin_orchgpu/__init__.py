"""`snakemake --executor orchgpu`: rules with the resource `orchgpu_function` are jobs of functions.

Such a rule's only input file is uploaded to the function, and the files that its job wrote become
the rule's outputs; its own body does not run. All other rules run on this machine, by Snakemake's
own command for one job, as many at a time as `--local-cores` has cores for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings

import orchgpu
from corekit.errors import AppError
from snakemake_executor_plugin_orchgpu.files import function_of, object_name, only_input, placed
from snakemake_executor_plugin_orchgpu.processes import end, started

#: A check reads no more than the memory of this process.
CHECK_EVERY_S = 0.2

#: Outputs are fetched into the working directory, which is shared with what runs here.
common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    """Jobs of functions followed by one `orchgpu.Executor`; the others are child processes."""

    #: Connects with the first rule that has a function; set here, for the base class checks jobs
    #: before it calls `__post_init__`.
    _functions: orchgpu.Executor | None = None

    def __post_init__(self) -> None:
        self.next_seconds_between_status_checks = CHECK_EVERY_S

    @property
    def _own_cores(self) -> int:
        return self.workflow.resource_settings.local_cores or os.cpu_count() or 1

    def run_job(self, job: JobExecutorInterface) -> None:
        """Start a job of a function, or queue one of this machine."""
        info = SubmittedJobInfo(job, aux={})
        try:
            function = None if job.is_group() else function_of(job.resources)
            if function is not None:
                info.aux["future"] = self._submitted(job, function)
            elif job.is_group() and any(function_of(one.resources) for one in job.jobs):
                raise ValueError("a rule with orchgpu_function is in no group")
            else:
                info.aux["command"] = self.format_job_exec(job)
        except (ValueError, AppError) as error:
            self.report_job_submission(info)
            info.aux["error"] = str(error)
            return
        self.report_job_submission(info)

    def _submitted(self, job: JobExecutorInterface, function: str) -> Future[Any]:
        if self._functions is None:
            self._functions = orchgpu.Executor()
        file = only_input([str(one) for one in job.input])
        folder = Path(self.tmpdir, f"job-{job.jobid}")
        return self._functions.submit_file(function, file, output=folder, name=object_name(file))

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that ended, start those that fit, yield all that have not ended."""
        self._start_fitting(active_jobs)
        for info in active_jobs:
            if not self._ended(info):
                yield info

    def _start_fitting(self, infos: list[SubmittedJobInfo]) -> None:
        """Start jobs of this machine while cores are left; one that needs more than all, alone."""
        used = sum(one.job.threads for one in infos if _runs(one))
        for info in infos:
            threads = info.job.threads
            if "command" in info.aux and (not used or used + threads <= self._own_cores):
                used += threads
                info.aux["process"] = started(info.aux.pop("command"))

    def _ended(self, info: SubmittedJobInfo) -> bool:
        """Whether the job ended, which is reported then."""
        error = info.aux.get("error")
        future, process = info.aux.get("future"), info.aux.get("process")
        if future is not None:
            if not future.done():
                return False
            error = self._taken_over(info.job, future)
        elif process is not None:
            if process.poll() is None:
                return False
            error = f"exit status {process.returncode}" if process.returncode else None
        elif error is None:
            return False  # it waits for cores
        if error is None:
            self.report_job_success(info)
        else:
            self.report_job_error(info, msg=f"{error}\n")
        return True

    def _taken_over(self, job: JobExecutorInterface, future: Future[Any]) -> str | None:
        """Move the job's files to the rule's outputs, and its log; the error, if there is one."""
        try:
            result = future.result()
            for target, file in placed([str(one) for one in job.output], result.outputs):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(file, target)
            _write_log(job, result.log_tail)
        except orchgpu.JobFailed as error:
            _write_log(job, error.log_tail)
            return str(error)
        except (AppError, ValueError, OSError) as error:
            return str(error)
        return None

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel the jobs of functions, and end the processes of this machine."""
        for info in active_jobs:
            if "future" in info.aux:
                info.aux["future"].cancel()
            if "process" in info.aux:
                end(info.aux["process"])

    def shutdown(self) -> None:
        """Return when every job has ended, also those that were cancelled."""
        super().shutdown()
        if self._functions is not None:
            self._functions.shutdown()


def _runs(info: SubmittedJobInfo) -> bool:
    return "process" in info.aux and info.aux["process"].poll() is None


def _write_log(job: JobExecutorInterface, text: str) -> None:
    """The last lines of the function's output, into the rule's log file where it has one."""
    for log in list(job.log)[:1]:
        file = Path(str(log))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
