"""The HTTP endpoint conforms to its description, whatever a schema fuzzer sends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
#: Never a crash; every answer has a status, a type and a body that the description knows.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


def fuzzed(programs: Any, daemon: Any, *arguments: str) -> None:
    address = daemon.wait_ready()["http"]
    done = subprocess.run(
        [
            SCHEMATHESIS,
            "--config-file",
            "/dev/null",
            "run",
            f"http://{address}/v1/openapi.json",
            "--checks",
            ",".join(CHECKS),
            "--no-color",
            "--exclude-path",
            "/v1/watch",  # never ends
            "--exclude-path",
            "/metrics",  # is no JSON
            "--generation-database",
            "none",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=550,
        cwd=programs.folder,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Operations" in done.stdout
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log.read_text()


def test_the_endpoint_conforms_to_its_description(programs: Any) -> None:
    daemon = programs.ssgmd()
    fuzzed(programs, daemon, "--phases", "fuzzing", "--max-examples", "2", "--seed", "7")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_endpoint_conforms_to_its_description_for_long(programs: Any) -> None:
    daemon = programs.ssgmd()
    inventory = programs.inventory("h.yaml", "kind: cuda, model: M, memory_mib: 1GiB")
    monitor = programs.monitor(daemon.wait_ready()["socket"], "h", inventory)
    monitor.wait_ready()  # so that requests are granted
    phases = "examples,coverage,fuzzing"
    fuzzed(programs, daemon, "--phases", phases, "--max-examples", "60")
