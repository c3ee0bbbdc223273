"""The steps of a run."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from orchgpu.adapters.aws.endpoints import resolve
from tools.aws_live_check.clean_up import CleanUp
from tools.aws_live_check.cloud import FAILURES, Clients, orchgpu, say
from tools.aws_live_check.run import Run, page

TAG = "orchgpu:live-check"
#: Uploads that must arrive one after another before the rules count as in force.
SETTLED = 3
SCRIPT = """\
#!/usr/bin/env python3
import os, pathlib
source = pathlib.Path(os.environ["INPUT_FILE_PATH"])
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], source.name).write_bytes(source.read_bytes())
"""
#: USD, list prices in us-east-1: 1,000 writes or lists of S3, one GB-second of Lambda.
WRITES_USD, GB_SECOND_USD = 0.005, 0.0000166667
_STEP = re.compile(r"^\[\d+/\d+\] ")


class LiveCheck:
    """The steps of one run."""

    def __init__(self, run: Run, options: argparse.Namespace) -> None:
        self.run = run
        self.options = options
        self.clients = Clients()
        self.folder: Path = options.folder
        self.definition = self.folder / f"{run.stem}.yaml"

    def timed(self, name: str, work: Callable[[], None]) -> None:
        """Perform one step and note its time."""
        say(f"{name} …")
        began_s = time.monotonic()
        try:
            work()
        finally:
            self.run.steps[name] = round(time.monotonic() - began_s, 3)
            self.run.write(self.folder)

    # ------------------------------------------------------------------ before

    def look(self) -> None:
        """The account and region, and what exists already."""
        run, settings = self.run, resolve("s3")
        run.account = str(self.clients["sts"].get_caller_identity()["Account"])
        run.region = str(self.clients["s3"].meta.region_name)
        run.local = settings.local
        run.started_s = time.time()
        run.state_bucket_existed = self.clients.has_bucket(run.state_bucket)

    def plan(self) -> str:
        """What will be made and what it costs, for the question."""
        run, options = self.run, self.options
        count = max(1, round(options.wait / options.interval))
        calls = count * 2 + options.wait + 300
        cost = calls / 1000 * WRITES_USD + count * 2 * 0.25 * GB_SECOND_USD
        lines = [
            f"account {run.account}, region {run.region}, run {run.run}",
            f"makes: buckets {run.stem}-in and {run.stem}-out, function and role {run.stem}",
            f"       at most {count} uploads, one every {options.interval:g} s",
            *([f"       function {run.stem}-job with its queues"] if options.scheduler else []),
            f"       bucket {run.state_bucket}"
            + (" exists and stays" if run.state_bucket_existed else " (removed again)"),
            f"takes: up to {options.wait / 60 + 5:.0f} min",
            f"costs: at most about {cost:.2f} USD (list prices of us-east-1)",
            f"ends:  everything is removed; interrupted: --clean-up {run.run}",
        ]
        return "\n".join(lines)

    # ------------------------------------------------------------------ steps

    def write_definition(self) -> None:
        """The smallest function, and with a scheduler one with a device."""
        stem, script = self.run.stem, f"{self.run.stem}.py"
        (self.folder / script).write_text(SCRIPT)
        plain = {
            "name": stem,
            "memory": 256,
            "timeout": 60,
            "init_script": script,
            "input": [{"path": f"{stem}-in/in"}],
            "output": [{"path": f"{stem}-out/out"}],
        }
        # its event alone starts it: there may be no orchestrator
        functions: list[dict[str, Any]] = [
            {"lambda": plain, "iam": {"create": True}, "job": "none"}
        ]
        if self.options.scheduler:
            functions.append(self._job_function(plain))
        self.definition.write_text(json.dumps({"functions": {"aws": functions}}, indent=2))

    def _job_function(self, plain: dict[str, Any]) -> dict[str, Any]:
        stem, options = self.run.stem, self.options
        settings = {k: v for k, v in plain.items() if k != "input"} | {"name": f"{stem}-job"}
        settings["output"] = [{"path": f"{stem}-out/jobs"}]
        if options.subnets:
            network = {"SubnetIds": options.subnets, "SecurityGroupIds": options.groups}
            settings["vpc"] = network
        job = {"input": [{"path": f"{stem}-in/jobs"}], "attempts": 3}
        return {"lambda": settings, "iam": {"create": True}, "gpu": {"memory": 64}, "job": job}

    def inspect(self, *arguments: str) -> list[dict[str, Any]]:
        """The findings of the doctor."""
        scheduler = ["--scheduler", self.options.scheduler] if self.options.scheduler else []
        text: list[str] = []
        with suppress(RuntimeError):  # a failed check is a finding
            text += orchgpu("doctor", *arguments, *scheduler, "--json")
        found: list[dict[str, Any]] = json.loads("".join(text) or "{}").get("findings", [])
        return found

    def inspect_before(self) -> None:
        self.run.doctor = self.inspect("--aws", str(self.definition))

    def inspect_after(self) -> None:
        self.run.doctor_after = self.inspect(self.run.stem)

    def deploy(self) -> None:
        """Deploy, with the time of each step."""
        before_s = time.monotonic()
        arguments = ["--yes-real-aws", "--allow-infeasible"]
        for line in orchgpu("deploy", str(self.definition), *arguments):
            now_s = time.monotonic()
            if _STEP.match(line):
                self.run.deploy_steps.append((line.strip(), round(now_s - before_s, 3)))
                before_s = now_s
        self.tag()

    def tag(self) -> None:
        """Tags by which people find what a run left; the clean-up goes by names."""
        with suppress(ClientError):
            answer = self.clients["lambda"].get_function(FunctionName=self.run.stem)
            arn = answer["Configuration"]["FunctionArn"]
            self.clients["lambda"].tag_resource(Resource=arn, Tags={TAG: self.run.run})
        tags = {"TagSet": [{"Key": TAG, "Value": self.run.run}]}
        for bucket in self.clients.buckets(f"{self.run.stem}-"):
            with suppress(ClientError):
                self.clients["s3"].put_bucket_tagging(Bucket=bucket, Tagging=tags)

    def probe(self) -> None:
        """Upload until several in a row arrive: the rules are in force then."""
        ends_s = time.monotonic() + self.options.wait
        next_s = time.monotonic()
        while time.monotonic() < ends_s and not (self.settled() and self._arrived()[-1]):
            if time.monotonic() >= next_s and not self.settled():
                self._upload()
                next_s += self.options.interval
            self._collect()
            time.sleep(min(0.5, self.options.interval))
        if not self.settled():
            raise RuntimeError(f"no {SETTLED} uploads in a row arrived in {self.options.wait} s")

    def settled(self) -> bool:
        """True when uploads in a row arrived; newer ones may be on their way."""
        arrived = self._arrived()
        while arrived and not arrived[-1]:
            arrived.pop()
        return len(arrived) >= SETTLED and all(arrived[-SETTLED:])

    def _arrived(self) -> list[bool]:
        return [probe["arrived_s"] is not None for probe in self.run.probes]

    def _upload(self) -> None:
        name = f"probe-{len(self.run.probes):03}.txt"
        s3, bucket = self.clients["s3"], f"{self.run.stem}-in"
        s3.put_object(Bucket=bucket, Key=f"in/{name}", Body=name.encode())
        false_404 = False
        try:
            s3.head_object(Bucket=bucket, Key=f"in/{name}")
        except ClientError:
            false_404 = True
        now_s = round(time.time() - self.run.started_s, 3)
        probe = {"name": name, "uploaded_s": now_s, "arrived_s": None, "false_404": false_404}
        self.run.probes.append(probe)
        self.run.write(self.folder)

    def _collect(self) -> None:
        pages = self.clients["s3"].get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=f"{self.run.stem}-out", Prefix="out/").build_full_result()
        names = {item["Key"].rpartition("/")[2] for item in found.get("Contents", ())}
        for probe in self.run.probes:
            if probe["arrived_s"] is None and probe["name"] in names:
                probe["arrived_s"] = round(time.time() - self.run.started_s, 3)

    def run_job(self) -> None:
        """One job with a device, where there is a scheduler."""
        file = self.folder / f"{self.run.stem}.txt"
        file.write_text("live\n")
        scheduler = ["--scheduler", self.options.scheduler]
        limit = f"{self.options.wait:g}s"
        name = f"{self.run.stem}-job"
        wait = ("--wait", "--timeout", limit)
        lines = list(orchgpu("run", name, str(file), *wait, *scheduler, "--json"))
        self.run.job = json.loads("".join(lines))

    def clean_up(self) -> None:
        """Remove everything of the run."""
        CleanUp(self.run, self.clients).clean_up()


def performed(check: LiveCheck) -> None:
    """All steps, and the clean-up whatever happens."""
    steps: list[tuple[str, Callable[[], None]]] = [
        ("definition", check.write_definition),
        ("doctor before", check.inspect_before),
        ("deploy", check.deploy),
        ("uploads", check.probe),
        *([("job", check.run_job)] if check.options.scheduler else []),
        ("doctor after", check.inspect_after),
    ]
    try:
        for name, work in steps:
            check.timed(name, work)
    except KeyboardInterrupt:
        check.run.error = "interrupted"
        raise
    except FAILURES as error:
        check.run.error = str(error)
    finally:
        say(f"clean-up … (again later: --clean-up {check.run.run})")
        check.timed("clean-up", check.clean_up)
        report = check.folder / f"{check.run.stem}.md"
        report.write_text(page(check.run))
        say(f"{report}\n{report.with_suffix('.json')}")
