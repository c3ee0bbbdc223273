"""One run: its data on disk, its figures, its page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fdl.plan.resources import DeployTarget

STEM = "orchgpu-live-"


@dataclass
class Run:
    """One run, as it is on disk after every step."""

    run: str
    account: str = ""
    region: str = ""
    local: bool = False
    state_bucket_existed: bool = True
    started_s: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)  #: name → seconds
    deploy_steps: list[tuple[str, float]] = field(default_factory=list)  #: sentence, seconds
    probes: list[dict[str, Any]] = field(default_factory=list)
    doctor: list[dict[str, Any]] = field(default_factory=list)  #: before the deploy
    doctor_after: list[dict[str, Any]] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    left: list[str] = field(default_factory=list)  #: what the clean-up could not remove

    @property
    def stem(self) -> str:
        return f"{STEM}{self.run}"

    @property
    def state_bucket(self) -> str:
        place = DeployTarget(account=self.account, region=self.region, local=self.local)
        return place.state_bucket

    def write(self, folder: Path) -> None:
        """Write the run to disk, so that a clean-up can begin there."""
        file = folder / f"{self.stem}.json"
        text = json.dumps({**asdict(self), "measures": measures(self)}, indent=2)
        file.with_suffix(".tmp").write_text(text)
        file.with_suffix(".tmp").replace(file)


def read(name: str, folder: Path) -> Run:
    """The run of that id, by its file where there is one."""
    file = folder / f"{STEM}{name}.json"
    if not file.is_file():
        return Run(run=name)
    stored = json.loads(file.read_text())
    stored.pop("measures", None)
    return Run(**stored)


def measures(run: Run) -> dict[str, Any]:
    """Figures of a run."""
    arrived = [p for p in run.probes if p["arrived_s"] is not None]
    delays = sorted(p["arrived_s"] - p["uploaded_s"] for p in arrived)
    first = run.probes[0]["uploaded_s"] if run.probes else None
    slowest = max(run.deploy_steps, key=lambda step: step[1], default=("", 0.0))
    return {
        "deploy_s": run.steps.get("deploy"),
        "slowest_step": slowest[0],
        "slowest_step_s": slowest[1],
        "uploads": len(run.probes),
        "lost_uploads": len(run.probes) - len(arrived),
        "rules_in_force_s": arrived[0]["uploaded_s"] - first if arrived else None,
        "event_s_median": delays[len(delays) // 2] if delays else None,
        "event_s_longest": delays[-1] if delays else None,
        "false_404s": sum(p["false_404"] for p in run.probes),
        "warnings": [f"{f['check']}: {f['message']}" for f in run.doctor if not f["good"]],
    }


def page(run: Run) -> str:
    """The run as one page."""
    rows = [f"| {name} | {value} |" for name, value in measures(run).items() if name != "warnings"]
    findings = [
        f"- {'ok' if f['good'] else 'FAILED'} {f['check']}: {f.get('where', '')} {f['message']}"
        for f in run.doctor
    ]
    left = [f"- {one}" for one in run.left] or ["Nothing is left."]
    lines = [
        f"# Live check {run.run}",
        "",
        f"Account {run.account}, {run.region}. {run.error or 'It ended well.'}",
        "",
        "| measure | value |",
        "| --- | --- |",
        *rows,
        *["", "## Steps", ""],
        *[f"- {name}: {seconds} s" for name, seconds in run.steps.items()],
        *[f"  - {sentence}: {seconds} s" for sentence, seconds in run.deploy_steps],
        *["", "## Doctor before the deploy", "", *findings],
        *["", "## Left", "", *left],
    ]
    return "\n".join(lines) + "\n"
