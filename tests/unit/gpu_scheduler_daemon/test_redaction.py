"""An answer hides from a key what belongs to other tenants."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.floors import FloorView
from gpu_scheduler.protocol import answers
from gpu_scheduler.verdicts import Explanation


def _nobody(_name: str) -> None:
    """No lease, job or run is known."""


def test_an_explanation_names_no_workload_to_another_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, other = (
        add_key(path, KeyEntry(name=one, role=KeyRole.REQUESTER, sha256="0" * 64, tenant=one))
        for one in ("lab", "x")
    )
    authorizer = Authorizer(path, _nobody, _nobody, _nobody)
    floor = FloorView(tenant="lab", workload="w", workers_min=1, workers=0)
    why = Explanation(
        devices_known=0,
        devices_fitting=0,
        counts={},
        position=None,
        largest_fit="",
        sentence="",
        floor=floor,
    )
    answer = answers.ExplainAnswer(outcome=answers.Outcome.WAITING, explanation=why)
    redaction = Redaction(authorizer)
    assert redaction.of(authorizer.caller(key), answer) == answer
    seen = redaction.of(authorizer.caller(other), answer)
    assert isinstance(seen, answers.ExplainAnswer)
    assert seen.explanation.floor == floor.redacted() != floor
