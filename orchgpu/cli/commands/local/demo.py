"""Run the whole system once on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import click

from corekit.aio.environment import budget_from_environment
from corekit.cli.screen import echo, echo_json, json_option
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.cli.definition.target import open_target
from orchgpu.cli.jobs.report import (
    NAME_WIDTH,
    echo_nothing,
    echo_outcome,
    echo_progress,
    echo_timeline,
    job_json,
)
from orchgpu.cli.local.launching import (
    await_up,
    check_weather,
    cloud_option,
    has_weather,
    launch_failure,
    show_event,
    stop_launch,
    weather_option,
)
from orchgpu.cloud_services import Address
from orchgpu.deploy.deployment import execute, prepare
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed, follow
from orchgpu.jobs.outputs import JobOutput, read_output
from orchgpu.jobs.provider import PROVIDER_VARIABLE
from orchgpu.jobs.scheduler import ask
from orchgpu.local.examples import DEMO_EXAMPLES, Example, example, resident_data
from orchgpu.local.home import Home, SystemRecord
from orchgpu.local.installed import check_installed
from orchgpu.local.programs import LocalSettings
from orchgpu.local.system import Launch, environment_of, survivors

#: Lines of an output that are shown.
SHOWN_LINES = 6
#: An output of the examples has a few KiB.
OUTPUT_BYTES_MAX = 2**20
#: Weather delays the events of a demo by up to this: rules take minutes to be in force.
WEATHER_S = 900.0
#: Exit status of a demo in which a job failed or something was left over.
NOT_CLEAN_STATUS = 1


class DemoResult(Value):
    """The jobs of a demo, and everything that they left behind."""

    jobs: Sequence[Followed]
    left: Mapping[str, int]  #: what stayed → its number


@click.command("demo")
@cloud_option
@click.option("--keep", is_flag=True, help="Keep the folder with logs and state, and print it.")
@weather_option
@json_option
def command(cloud: str, keep: bool, weather: str, as_json: bool) -> int:
    """Start the system, run both examples, show their jobs, stop the system.

    Needs no GPU, no AWS account, no docker: the machine's CPU is the device.

    \b
    Example:  orchgpu demo --json
    """
    check_weather(cloud, weather, quiet=as_json)
    check_installed(cloud)
    home = Home(Path(tempfile.mkdtemp(prefix="orchgpu-demo-")))
    launch = Launch(
        home,
        LocalSettings(cloud=cloud, data=resident_data(), weather=weather),
        lifeline=True,
        remove_home=not keep,
    )
    system: SystemRecord | None = None
    try:
        system = await_up(launch, quiet=as_json)
        outcome = _Demo(system, launch, quiet=as_json).run()
    finally:
        try:
            stop_launch(launch, quiet=as_json)
        finally:
            if keep:
                echo(f"kept: {home.path}", err=True)
            else:
                shutil.rmtree(home.path, ignore_errors=True)  # the supervisor may have been killed
    left = [] if system is None else survivors(system)
    if as_json:
        jobs = [job_json(job) for job in outcome.jobs]
        echo_json({"jobs": jobs, **outcome.left, "processes_left": left})
    return _status(outcome, left)


class _Demo:
    """The part between start and stop."""

    def __init__(self, system: SystemRecord, launch: Launch, *, quiet: bool) -> None:
        self._system = system
        self._launch = launch
        self._quiet = quiet
        self._budget = budget_from_environment()
        self._late_s = WEATHER_S if has_weather(system) else 0.0

    def run(self) -> DemoResult:
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
        inventory = ask(self._system.scheduler, lambda client: client.inventory())
        for host in sorted(inventory.hosts, key=lambda host: host.host):
            for view in host.devices:
                device = view.device
                self._echo(
                    f"{host.host:<13} device {device.index}: {device.kind.value}, "
                    f"{device.model}, {device.memory_mib} MiB, {device.detail}"
                )

    def _deploy(self, examples: Sequence[Example]) -> None:
        with open_target(Address()) as target:
            for each in examples:
                prepared = prepare(each.definition, target.cloud, self._budget)
                execute(prepared, target.cloud, lambda *_: None)
                steps = len(prepared.plan.steps)
                self._echo(f"{each.name:<{NAME_WIDTH}} deployed ({steps} steps)")

    def _jobs(self, cloud: JobCloud, examples: Sequence[Example]) -> list[Followed]:
        deployed = [(cloud.function(each.name), each.inputs) for each in examples]
        submitted = [
            cloud.submit(function, file, now_s=time.time())
            for function, files in deployed
            for file in files
        ]
        following = follow(
            cloud,
            self._system.scheduler,
            submitted,
            echo_nothing if self._quiet else echo_progress,
            within_s=self._budget.demo_jobs_s + self._late_s,
            check=self._check,
        )
        return asyncio.run(following)

    def _check(self) -> None:
        for event in self._launch.fresh_events():
            if event["event"] == "died":
                raise launch_failure(event)
            show_event(event)

    def _show(self, cloud: JobCloud, jobs: Sequence[Followed]) -> None:
        for job in jobs:
            echo_outcome(job)
            for file in _for_people(job):
                text = read_output(cloud, file, OUTPUT_BYTES_MAX).decode("utf-8", "replace")
                for line in text.splitlines()[:SHOWN_LINES]:
                    echo(f"  | {line}")
            echo_timeline(job)
        echo()

    def _outcome(self, cloud: JobCloud, jobs: Sequence[Followed]) -> DemoResult:
        functions = {job.submitted.function.name: job.submitted.function for job in jobs}
        work_queues = [url for f in functions.values() for url in (f.queue_url, f.completion_url)]
        deadline_s = time.monotonic() + self._budget.queues_empty_s + self._late_s
        while True:
            leases = len(ask(self._system.scheduler, lambda client: client.leases()))
            messages = sum(cloud.messages(url) for url in work_queues)
            if leases + messages == 0 or time.monotonic() > deadline_s:
                break
            time.sleep(0.2)
        dead = sum(cloud.messages(f.dead_letter_url) for f in functions.values())
        self._echo(f"left: {leases} leases, {messages} messages, {dead} dead letters")
        left = {"leases_left": leases, "messages_left": messages, "dead_letters": dead}
        return DemoResult(jobs=jobs, left=left)

    def _echo(self, line: str) -> None:
        if not self._quiet:
            echo(line, err=True)


def _for_people(job: Followed) -> list[JobOutput]:
    return [one for one in job.outputs if not one.key.endswith(".json")]


def _adopt_environment(environment: Mapping[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "LOCALSTACK_")) or name == PROVIDER_VARIABLE:
            del os.environ[name]
    os.environ.update(environment)


def _status(outcome: DemoResult, left: Sequence[str]) -> int:
    if not outcome.jobs:
        raise AppError(ErrorCode.INTERNAL, "the demo ran no job")
    problems = [
        *(f"{job.submitted.input} did not succeed" for job in outcome.jobs if not job.succeeded),
        *(f"{count} {name}" for name, count in outcome.left.items() if count),
        *(f"process {name} still runs" for name in left),
    ]
    for problem in problems:
        echo(f"orchgpu: {problem}", err=True)
    return NOT_CLEAN_STATUS if problems else 0
