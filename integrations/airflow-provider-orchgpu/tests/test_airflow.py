"""Real Airflow, with its database and its triggerer's loop, on a running system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DAG = """
import os
from airflow.sdk import DAG
from airflow_provider_orchgpu.operators import OrchgpuOperator

with DAG(dag_id="shouting") as dag:
    files = os.environ["FILES"].split()
    OrchgpuOperator(task_id="shout", function="shout", files=files, folder="out")

if __name__ == "__main__":
    for task in dag.test().get_task_instances():
        print("task", task.task_id, task.state)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's home with an empty database."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags/shouting.py").write_text(DAG)
    done = airflow(home, "-m", "airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr[-3000:]
    return home


def airflow(home: Path, *arguments: str, files: str = "") -> subprocess.CompletedProcess[str]:
    own = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "FILES": files}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_task_waits_in_the_triggerer_and_takes_the_outputs(home: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (home / name).write_text(f"airflow {name}")
    done = airflow(home, "dags/shouting.py", files="a.txt b.txt")
    assert "task shout success" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    loud = sorted(file.read_text() for file in (home / "out").rglob("*.loud"))
    assert loud == ["AIRFLOW A.TXT", "AIRFLOW B.TXT"]


def test_a_failed_job_fails_the_task(home: Path) -> None:
    (home / "c.txt").write_text("please fail")
    done = airflow(home, "dags/shouting.py", files="c.txt")
    assert "task shout failed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the text asks for it" in done.stdout + done.stderr


def test_the_provider_is_known(home: Path) -> None:
    listed = airflow(home, "-m", "airflow", "providers", "list", "--output", "plain").stdout
    assert "airflow-provider-orchgpu" in listed
