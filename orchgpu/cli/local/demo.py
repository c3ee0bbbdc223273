"""`orchgpu demo`: the whole system once, on this machine, with real work, nothing left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corekit.aio.environment import budget_from_environment
from corekit.errors import AppError, ErrorCode
from orchgpu.cli.local.local import await_up, cloud_option, show_event, stop_launch, told_failure
from orchgpu.cli.terminal.screen import json_option, say, say_json
from orchgpu.local.examples import DEMO_EXAMPLES, Example, example, resident_data
from orchgpu.local.home import Home, SystemRecord
from orchgpu.local.installed import check_installed
from orchgpu.local.system import Launch, environment_of, survivors

if TYPE_CHECKING:
    from orchgpu.cli.cloud import JobCloud
    from orchgpu.cli.jobs.follow import Followed

#: Lines of an output that are shown.
SHOWN_LINES = 6
#: Ends a demo in which a job failed or something was left.
NOT_CLEAN_STATUS = 1


@click.command(short_help="Run all of it once on this machine.")
@cloud_option
@click.option("--keep", is_flag=True, help="Keep the folder with logs and state, and say where.")
@json_option
def demo(cloud: str, keep: bool, as_json: bool) -> int:
    """Start everything, run both examples, show what happened, stop everything.

    Needs no GPU, no AWS account, no docker: the machine's CPU is the device.

    \b
    Example:  orchgpu demo --json
    """
    check_installed(cloud)
    home = Home(Path(tempfile.mkdtemp(prefix="orchgpu-demo-")))
    launch = Launch(home, cloud=cloud, data=resident_data(), lifeline=True, remove_home=not keep)
    system: SystemRecord | None = None
    try:
        system = await_up(launch, quiet=as_json)
        outcome = _Demo(system, launch, quiet=as_json).run()
    finally:
        try:
            stop_launch(launch, quiet=as_json)
        finally:
            if keep:
                say(f"kept: {home.path}", err=True)
            else:
                shutil.rmtree(home.path, ignore_errors=True)  # the supervisor may have been killed
    left = [] if system is None else survivors(system)
    if as_json:
        say_json({**outcome, "processes_left": left})
    return _verdict(outcome, left)


class _Demo:
    """What happens between start and stop."""

    def __init__(self, system: SystemRecord, launch: Launch, *, quiet: bool) -> None:
        self._system = system
        self._launch = launch
        self._quiet = quiet
        self._budget = budget_from_environment()

    def run(self) -> dict[str, Any]:
        """Deploy, upload, follow, count what is left."""
        from contextlib import closing

        from orchgpu.cli.cloud import JobCloud

        _adopt_environment(environment_of(self._system))
        self._show_devices()
        examples = [example(name) for name in DEMO_EXAMPLES]
        self._deploy(examples)
        with closing(JobCloud()) as cloud:
            jobs = self._jobs(cloud, examples)
            if not self._quiet:
                self._show(cloud, jobs)
            return self._outcome(cloud, jobs)

    def _show_devices(self) -> None:
        from orchgpu.cli.scheduler import ask

        inventory = ask(self._system.scheduler, lambda client: client.inventory())
        for host in sorted(inventory.hosts, key=lambda host: host.host):
            for view in host.devices:
                device = view.device
                self._say(
                    f"{host.host:<13} device {device.index}: {device.kind.value}, "
                    f"{device.model}, {device.memory_mib} MiB, {device.detail}"
                )

    def _deploy(self, examples: list[Example]) -> None:
        from contextlib import closing

        from orchgpu.adapters.aws.endpoints import resolve
        from orchgpu.deploy.aws.cloud import AwsCloud
        from orchgpu.deploy.deployment import execute, prepare

        with closing(AwsCloud(resolve)) as aws:
            for each in examples:
                prepared = prepare(each.definition, aws, self._budget)
                execute(prepared, aws, lambda *_: None)
                self._say(f"{each.name:<24} deployed ({len(prepared.plan.steps)} steps)")

    def _jobs(self, cloud: JobCloud, examples: list[Example]) -> list[Followed]:
        import asyncio

        from orchgpu.cli.jobs.follow import follow
        from orchgpu.cli.jobs.report import say_nothing, say_progress

        deployed = [(cloud.function(each.name), each.inputs) for each in examples]
        submitted = [
            cloud.submit(function, file, now_s=time.time())
            for function, files in deployed
            for file in files
        ]
        tell = say_nothing if self._quiet else say_progress
        following = follow(
            cloud,
            self._system.scheduler,
            submitted,
            tell,
            within_s=self._budget.demo_jobs_s,
            check=self._check,
        )
        return asyncio.run(following)

    def _check(self) -> None:
        """A program that died is the end of the demo, not a long wait."""
        for event in self._launch.fresh_events():
            if event["event"] == "died":
                raise told_failure(event)
            show_event(event)

    def _show(self, cloud: JobCloud, jobs: list[Followed]) -> None:
        from orchgpu.cli.jobs.report import say_outcome, say_timeline

        for job in jobs:
            say_outcome(job)
            for file in _for_people(job):
                text = cloud.fetch(str(file["bucket"]), str(file["key"])).decode("utf-8", "replace")
                for line in text.splitlines()[:SHOWN_LINES]:
                    say(f"  | {line}")
            say_timeline(job)
        say("")

    def _outcome(self, cloud: JobCloud, jobs: list[Followed]) -> dict[str, Any]:
        from orchgpu.cli.jobs.report import job_json

        functions = {job.submitted.function.name: job.submitted.function for job in jobs}
        work_queues = [url for f in functions.values() for url in (f.queue_url, f.completion_url)]
        deadline_s = time.monotonic() + self._budget.queues_empty_s
        while True:
            leases = self._leases_left()
            messages = sum(cloud.messages(url) for url in work_queues)
            if leases + messages == 0 or time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        dead = sum(cloud.messages(f.dead_letter_url) for f in functions.values())
        self._say(f"left: {leases} leases, {messages} messages, {dead} dead letters")
        return {
            "jobs": [job_json(job) for job in jobs],
            "leases_left": leases,
            "messages_left": messages,
            "dead_letters": dead,
        }

    def _leases_left(self) -> int:
        from orchgpu.cli.scheduler import ask

        return len(ask(self._system.scheduler, lambda client: client.leases()))

    def _say(self, line: str) -> None:
        if not self._quiet:
            say(line, err=True)


def _for_people(job: Followed) -> list[dict[str, Any]]:
    """Its outputs, without those for programs."""
    files = job.result.files if job.result is not None else []
    return [file for file in files if not str(file["key"]).endswith(".json")]


def _adopt_environment(environment: dict[str, str]) -> None:
    """From here on this process speaks to the demo's cloud, whatever account it came with."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "LOCALSTACK_")):
            del os.environ[name]
    os.environ.update(environment)


def _verdict(outcome: dict[str, Any], left: list[str]) -> int:
    failed = [job["input"] for job in outcome["jobs"] if job["state"] != "SUCCEEDED"]
    problems = [
        *(f"{name} did not succeed" for name in failed),
        *(
            f"{outcome[key]} {key}"
            for key in ("leases_left", "messages_left", "dead_letters")
            if outcome[key]
        ),
        *(f"process {name} still runs" for name in left),
    ]
    if not outcome["jobs"]:
        raise AppError(ErrorCode.INTERNAL, "the demo ran no job")
    for problem in problems:
        say(f"orchgpu: {problem}", err=True)
    return NOT_CLEAN_STATUS if problems else 0
