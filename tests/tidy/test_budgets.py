"""A budget of lines for every folder: growth is a decision, taken in a commit of its own.

A change that needs more raises its folder's number in its own commit, with the reason. A folder
that shrank by more than `SLACK` lowers its number: what was saved is not spent by the way.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLACK = 0.03  #: part of a budget that may stand unused
SLACK_LINES = 60

#: Rooms of the product whose folders have budgets of their own.
ROOMS = {
    "contract",
    "corekit",
    "fdl",
    "gpu_scheduler",
    "lambda_functions",
    "local_cloud",
    "operations",
    "orchgpu",
    "remote_gpu",
}

#: Lines of Python by folder, with what they are for. `ROOM/*` are the modules beside the folders.
PYTHON: dict[str, tuple[int, str]] = {
    "benchmarks": (12_200, "every figure of the docs, beside its peer or limit"),
    "contract/*": (900, "envelope, result, keys and states between orchestrator and function"),
    "contract/aws": (
        250,
        "faults, sessions, patience and conditional writes of AWS, for all callers",
    ),
    "contract/secrets": (250, "references to secrets and their stores"),
    "corekit/*": (1_800, "values, reading with explained errors, ids, units, metrics table"),
    "corekit/aio": (1_400, "driver of the cores, supervision, clocks, HTTP set-up"),
    "corekit/cli": (1_000, "one command-line kit: tables that fit, bars, times, settings"),
    "corekit/net": (150, "addresses, browsers, sources of connections"),
    "corekit/tracing": (350, "spans with derived ids, measured by other programs"),
    "experiments": (1_950, "the papers' figures beside ours: one module an experiment"),
    "fdl/*": (950, "the model of a definition, its reading and its problems"),
    "fdl/examples": (450, "scripts of the examples that users copy"),
    "fdl/graph": (550, "the workflow that storage paths draw"),
    "fdl/keys": (2_500, "every key: reader, meaning, default"),
    "fdl/lint": (1_500, "suspicious settings, with their place in the file"),
    "fdl/migrate": (850, "SCAR's and OSCAR's older shapes"),
    "fdl/plan": (3_150, "resources and steps of a deploy, pure"),
    "fdl/schema": (800, "readers of located values, JSON Schema, documentation"),
    "fdl/text": (800, "YAML with positions, comments and round trip"),
    "gpu_scheduler/*": (2_650, "model of requests, devices and leases; their options and texts"),
    "gpu_scheduler/client": (3_300, "library, addresses of a pair, and the commands of `ssgm`"),
    "gpu_scheduler/core": (
        14_600,
        "who gets which device: eight layers and the policies of the product",
    ),
    "gpu_scheduler/daemon": (9_200, "endpoints, keys, journal and its engines, standby, events"),
    "gpu_scheduler/monitor": (2_050, "probes of devices, link of hosts"),
    "gpu_scheduler/protocol": (2_550, "one schema of ops, answers, pushes and changes"),
    "integrations": (850, "orchgpu in Snakemake, Parsl and Airflow: a package each"),
    "lambda_functions/*": (150, "the module that scripts import"),
    "lambda_functions/complete": (50, "the function that a completion queue calls"),
    "lambda_functions/orchestrate": (50, "the function that a job queue calls"),
    "lambda_functions/http_api": (650, "jobs by a URL of their function: requests, jobs, answers"),
    "lambda_functions/gpu_runner": (
        5_550,
        "the runner inside Lambda: session, script, outputs, commit",
    ),
    "local_cloud/*": (50, "entry point"),
    "local_cloud/bridge": (550, "notifications and functions beside moto"),
    "local_cloud/model": (4_600, "S3, SQS, Lambda, secrets, roles and weather, pure"),
    "local_cloud/sandbox": (1_650, "execution environments under AWS's own runtime client"),
    "local_cloud/server": (4_750, "the wire forms of what product and functions call"),
    "operations/*": (200, "registration of what devices compute"),
    "operations/alignment": (700, "Smith-Waterman"),
    "operations/array_kernels": (350, "map and reduce"),
    "operations/inference": (550, "ONNX models on CPU and card"),
    "operations/kernels": (2_650, "tenants' kernels, rewritten with bounds checks (ADR 11)"),
    "operations/matrix": (350, "sgemm"),
    "operations/plugins": (1_400, "one module for each named operation"),
    "operations/recognition": (700, "images: text, and the outputs of given models"),
    "orchgpu/*": (1_600, "declaration, map, settings and ports"),
    "orchgpu/adapters": (7_650, "AWS behind the ports: queue, store, commands, deploy"),
    "orchgpu/cli": (10_300, "commands, `top`, live tables"),
    "orchgpu/core": (5_900, "what happens to a job: one table of phases and events"),
    "orchgpu/deploy": (1_700, "packages, files, revisions, waiting for AWS"),
    "orchgpu/fleet": (2_350, "hosts that come and go: a pure core, ports, the program"),
    "orchgpu/history": (1_600, "bounded history of jobs, leases, devices"),
    "orchgpu/inspection": (1_200, "what a first deploy meets in an account"),
    "orchgpu/infra": (1_700, "one template for an AWS account: plan, deploy, first start"),
    "orchgpu/jobs": (5_400, "use cases about jobs and their live read model, without a terminal"),
    "orchgpu/local": (2_000, "the local system: up, down, supervision"),
    "orchgpu/permissions": (1_100, "policies of every role"),
    "orchgpu/replica": (4_600, "loops, actions and observers of an orchestrator"),
    "orchgpu/report": (1_050, "report page and costs"),
    "orchgpu/web": (6_050, "the console behind its pages"),
    "remote_gpu/*": (50, "the public names for plug-ins"),
    "remote_gpu/client": (2_950, "what a script imports: session, lanes, graphs"),
    "remote_gpu/forwarder": (400, "relay for unmodified clients"),
    "remote_gpu/host": (13_750, "gpud: gateway, leases, workers, warm workers, devices"),
    "remote_gpu/isolation": (2_450, "users, namespaces, Landlock, seccomp, cgroups (ADR 10)"),
    "remote_gpu/middleware": (800, "rules of the foreign middlewares"),
    "remote_gpu/wire": (1_750, "frames and proof, standard library only"),
    "remote_gpu/worker": (6_200, "a lease's process: lanes, backends, memory, stores"),
    "simulator": (
        10_850,
        "both cores on a virtual clock, with faults, workloads and the papers' policies",
    ),
    "tests": (132_500, "the guarantees"),
    "tools": (3_850, "generators of pages, pictures, checks"),
}

#: Lines of JavaScript and CSS that we wrote for the console's pages.
ASSETS = (4_650, "pages of the console: tables, Gantt, logs, live updates without a framework")

#: Words of all Markdown pages.
WORDS = (138_160, "README, manual, reference, decisions, glossary, changelog")


@cache
def tracked() -> tuple[PurePosixPath, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(
        PurePosixPath(name) for name in listed.stdout.splitlines() if (ROOT / name).exists()
    )


def folder_of(path: PurePosixPath) -> str:
    """The folder whose budget a file of Python uses."""
    room, *rest = path.parts
    if room not in ROOMS:
        return room
    return f"{room}/{rest[0]}" if len(rest) > 1 else f"{room}/*"


def lines_by_folder() -> Counter[str]:
    lines: Counter[str] = Counter()
    for path in tracked():
        if path.suffix == ".py" and len(path.parts) > 1:
            lines[folder_of(path)] += (ROOT / path).read_text().count("\n")
    return lines


def test_every_folder_has_a_budget_and_every_budget_a_folder() -> None:
    assert set(lines_by_folder()) == set(PYTHON)


@pytest.mark.parametrize("folder", PYTHON)
def test_a_folder_keeps_its_budget(folder: str) -> None:
    check(lines_by_folder()[folder], PYTHON[folder][0])


def test_the_pages_keep_their_budgets() -> None:
    assets = [path for path in tracked() if path.suffix in {".js", ".css"} and ours(path)]
    check(sum((ROOT / path).read_text().count("\n") for path in assets), ASSETS[0])
    pages = [path for path in tracked() if path.suffix == ".md"]
    check(sum(len((ROOT / path).read_text().split()) for path in pages), WORDS[0])


def ours(path: PurePosixPath) -> bool:
    """Not a library that lies here as its authors wrote it."""
    return "vendor" not in path.parts


def check(used: int, budget: int) -> None:
    assert used <= budget, f"{used} of {budget}: remove something, or raise it in its own commit"
    unused = budget - used
    assert unused <= max(SLACK_LINES, SLACK * budget), f"{used} of {budget}: lower the budget"
