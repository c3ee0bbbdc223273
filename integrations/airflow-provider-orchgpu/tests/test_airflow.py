"""Real Airflow, with its database and its triggerer's loop, on a running system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DAG = """
import sys
from airflow.sdk import DAG
from airflow_provider_orchgpu.operators import OrchgpuOperator

with DAG(dag_id="shouting") as dag:
    OrchgpuOperator(task_id="shout", function="shout", files=sys.argv[1:], output="out")

run = dag.test()
for task in run.get_task_instances():
    print("task", task.task_id, task.state)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's home with an empty database."""
    home = tmp_path_factory.mktemp("airflow")
    done = airflow(home, "-m", "airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr[-3000:]
    return home


def airflow(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, timeout=400
    )


def test_a_task_waits_in_the_triggerer_and_takes_the_outputs(home: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (home / name).write_text(f"airflow {name}")
    (home / "dag.py").write_text(DAG)
    done = airflow(home, "dag.py", "a.txt", "b.txt")
    assert "task shout success" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    loud = sorted(file.read_text() for file in (home / "out").rglob("*.loud"))
    assert loud == ["AIRFLOW A.TXT", "AIRFLOW B.TXT"]


def test_a_failed_job_fails_the_task(home: Path) -> None:
    (home / "c.txt").write_text("please fail")
    (home / "dag.py").write_text(DAG)
    done = airflow(home, "dag.py", "c.txt")
    assert "task shout failed" in done.stdout
    assert "the text asks for it" in done.stdout + done.stderr


def test_the_provider_is_known(home: Path) -> None:
    assert "airflow-provider-orchgpu" in airflow(home, "-m", "airflow", "providers", "list").stdout
