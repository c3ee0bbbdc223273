"""One real ssgmd with a watched host for all tests of ssgm, which runs in this process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest

from gpu_scheduler.client import cli
from gpu_scheduler.client.commands.forms import json_schema
from tests.integration.conftest import TIME_SCALE, Programs

K80 = "kind: cuda, model: Tesla K80, memory_mib: 12GiB"


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run_ssgm(*arguments: str) -> Done:
    """The command as `main` runs it, without the 0.3 s that a new interpreter needs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run(arguments)
    return Done(status, out.getvalue(), err.getvalue())


@functools.cache
def _validator(form: str) -> Any:
    return jsonschema_rs.validator_for({"$ref": f"#{form}", **json_schema()})


class Unhurried(Programs):
    """With production's timings: nothing here waits for one, and no loaded machine is silent."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "ORCHGPU_TIME_SCALE": "1"}


@dataclass(frozen=True)
class Lab:
    """A scheduler with host k80 of two devices."""

    programs: Programs
    scheduler: str
    http: str

    def ssgm(self, *arguments: str) -> Done:
        return run_ssgm(*arguments, "--scheduler", self.scheduler)

    def json(self, *arguments: str, status: int = 0) -> Any:
        done = self.ssgm(*arguments, "--json")
        assert done.returncode == status, (done.stdout, done.stderr)
        value = json.loads(done.stdout)
        form = "/error" if "error" in value else f"/commands/{arguments[0]}"
        _validator(form).validate(value)
        assert value.pop("version") == 1
        return value

    def classic(self, *arguments: str) -> Done:
        host, _, port = self.scheduler.rpartition(":")
        return run_ssgm("-S", host, "-P", port, *arguments)

    def take(self, *words: str) -> str:
        """A lease's id."""
        taken = self.json("alloc", "--advisory", *words)
        lease: str = taken["granted"]["lease"]["id"]
        return lease


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    programs = Unhurried(tmp_path_factory.mktemp("ssgm"))
    ready = programs.ssgmd().wait_ready()
    inventory = programs.inventory("k80.yaml", K80, K80)
    programs.monitor(ready["socket"], "k80", inventory).wait_ready()
    yield Lab(programs, ready["socket"], ready["http"])
    for program in programs.started:
        if program.process.poll() is None:
            program.kill()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address where nobody listens; giving up there takes 0.75 s instead of 15."""
    monkeypatch.setenv("ORCHGPU_TIME_SCALE", str(TIME_SCALE))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return "{}:{}".format(*unused.getsockname())


@pytest.fixture
def lab(started: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """With nothing lent and nobody waiting, before and after."""
    monkeypatch.setenv("ORCHGPU_TIME_SCALE", "1")
    yield started
    for lease in started.json("leases")["leases"]:
        started.ssgm("dealloc", lease["id"])
