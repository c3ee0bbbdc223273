"""Alert rules and dashboard name metrics and labels of the catalogue; promtool checks the rest."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from corekit.metrics import METRICS, Kind

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "infra/monitoring"
SERIES = {
    series: set(metric.labels) | ({"le"} if metric.kind is Kind.HISTOGRAM else set())
    for metric in METRICS.values()
    for series in metric.series
}
#: Labels that Prometheus adds to every series.
TARGET = {"instance", "job"}
#: A selector: a name, perhaps with matchers; other words of PromQL are followed by "(" or known.
SELECTOR = re.compile(r"\b([a-zA-Z_]\w*)\b(?:\{([^}]*)\})?(?!\s*\()")
WORDS = {"by", "on", "and", "or", "unless", "sum", "min", "max", "le"}


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str, str]]:
    """Name, expression, and the text shown beside it."""
    for rule in rules():
        yield rule["alert"], rule["expr"], str(rule["annotations"])
    for panel in panels():
        targets = panel["targets"]
        assert isinstance(targets, list)
        for target in targets:
            yield str(panel["title"]), target["expr"], target["legendFormat"]


def selected(expression: str) -> list[tuple[str, list[str]]]:
    """Series and the labels of their matchers."""
    grouped = re.sub(r"\b(?:by|on)\s*\([^)]*\)", "", expression)
    bare = re.sub(r"\[[^\]]*\]", "", grouped)
    quoted = re.sub(r'"[^"]*"', '""', bare)
    return [
        (name, re.findall(r"(\w+)\s*[=!]", matchers or ""))
        for name, matchers in SELECTOR.findall(quoted)
        if name not in WORDS
    ]


@pytest.mark.parametrize(("title", "expression", "shown"), list(expressions()))
def test_an_expression_reads_metrics_that_exist(title: str, expression: str, shown: str) -> None:
    found = selected(expression)
    assert found, title
    assert {name for name, _ in found} <= set(SERIES)
    labels: set[str] = set().union(*(SERIES[name] for name, _ in found)) | TARGET
    for name, matched in found:
        assert set(matched) <= SERIES[name]
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels
    used = re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", shown)
    assert {first or second for first, second in used} <= labels


def test_the_page_has_every_alert() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert re.findall(r"^\| `(Orchgpu\w+)` \|", page, re.MULTILINE) == [r["alert"] for r in rules()]


def test_every_alert_is_tested_by_promtool() -> None:
    tests = (FOLDER / "alerts.test.yaml").read_text()
    assert [rule["alert"] for rule in rules() if f'"{rule["alert"]}"' not in tests] == []


def test_panels_do_not_overlap() -> None:
    cells = []
    for panel in panels():
        at = panel["gridPos"]
        assert isinstance(at, dict)
        assert at["x"] + at["w"] <= 24
        cells += [(x, at["y"]) for x in range(at["x"], at["x"] + at["w"])]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus)")
def test_promtool_accepts_the_rules_and_sees_them_fire(tmp_path: Path) -> None:
    spoken = [
        {"record": f"panel:{number}", "expr": expression}
        for number, (_, expression, _) in enumerate(expressions())
    ]
    of_panels = tmp_path / "panels.yaml"
    of_panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": spoken}]}))
    for arguments in (
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "alerts.yaml", str(of_panels)],
        ["test", "rules", "alerts.test.yaml"],
    ):
        command = ["promtool", *arguments]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
