"""The examples and the schema that this distribution carries."""

from importlib.resources import files
from pathlib import Path

import pytest

import fdl
from corekit.budget import Budget
from corekit.decode import decode
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.plan import Observed, plan
from fdl.plan.resources import Record
from orchgpu.core.function import Function
from orchgpu.deploy.deployment import validate
from tests.unit.fdl.definitions import CODE, LOCAL

EXAMPLES = sorted(Path(str(files(fdl))).glob("examples/*/fdl.yaml"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_is_valid_without_a_single_note(path: Path) -> None:
    document, notes = validate(path)
    # `orchgpu init` makes the keys, which are not in this distribution
    assert [note.text("fdl.yaml") for note in notes if ".secrets." not in note.path] == []
    names = [function.name for function in document.functions.aws]
    assert all(name.startswith(path.parent.name) for name in names)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_plans_all_that_a_job_needs(path: Path) -> None:
    *_, function = (one for one in deployed(parse(path.read_bytes())) if one.gpu is not None)
    wanted = desired(function, LOCAL, CODE, Budget())
    made = plan([wanted], Observed(), LOCAL)
    kinds = [step.resource.kind for step in made.steps]
    assert kinds.count("queue") == 3
    assert kinds[-1] == "record"
    (record,) = [r for r in wanted.resources if isinstance(r, Record)]
    urls = {name: f"http://sqs/{name}" for name in function.queues}
    served = decode(Function, record.resolved(urls).body)
    assert served.name == function.name
    assert function.gpu is not None
    assert replace(served.request, lease_s=None, workload=None) == function.gpu.request
    assert served.request.lease_s is not None
    assert served.request.lease_s > function.function.timeout_s
