"""Every shape of SCAR's own examples and documents: its findings, and its translation.

The files under `shapes/` have the structure of those examples. Their findings are in
`shapes/verdicts.txt`; when that changes for a good reason, the failure shows the new text.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl.diagnostics import FileFacts, Severity
from fdl.lint.lint import lint
from fdl.migrate.migrate import migrate
from fdl.model import Document
from fdl.parse import parse
from fdl.plan.plan import plan
from fdl.schema.schema import Reading
from fdl.text.compose import compose
from tests.unit.fdl.definitions import LOCAL
from tests.unit.fdl.test_plan import World, wanted

SHAPES = sorted((Path(__file__).parent / "shapes").glob("*.yaml"))
SCRIPT = {"script.sh": FileFacts(first_line=b"#!/bin/sh\n")}


def verdicts() -> Iterator[str]:
    for path in SHAPES:
        for note in lint(parse(path.read_bytes(), path.name), files=SCRIPT, place=LOCAL):
            yield note.text(path.name)


def test_the_findings_of_every_shape() -> None:
    golden = Path(__file__).parent / "shapes" / "verdicts.txt"
    assert "\n".join(verdicts()) + "\n" == golden.read_text()


def shape(name: str) -> Document:
    return parse((Path(__file__).parent / "shapes" / f"{name}.yaml").read_bytes())


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_shape_plans_and_then_plans_nothing(path: Path) -> None:
    document = parse(path.read_bytes())
    notes = lint(document, files=SCRIPT, place=LOCAL)
    assert [note for note in notes if note.severity is Severity.ERROR] == []
    functions, world = wanted(path.read_text()), World()
    first = plan(functions, world.observed(), LOCAL)
    assert {s.resource.name for s in first.steps if s.resource.kind == "function"} == {
        function.name for function in document.functions.aws if function.in_lambda
    }
    world.apply(first.steps)
    assert plan(functions, world.observed(), LOCAL).empty


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_rewritten_file_needs_no_rewriting(path: Path) -> None:
    composed = compose(path.read_bytes(), path.name)
    root, rewrites = migrate(composed.root, Reading(source=composed.source))
    again, none = migrate(root, Reading(source=composed.source))
    assert none == ()
    assert again == root
    assert (root is composed.root) == (rewrites == ())


def test_scars_batch_gpu_becomes_one_device() -> None:
    split, subtitles, objects = shape("audio-video-workflow").functions.aws
    assert split.gpu is subtitles.gpu is None
    assert objects.gpu is not None
    assert objects.gpu.request.count == 1
    assert (objects.function.memory_mib, objects.function.timeout_s) == (12288, 39_000)
    assert objects.execution == "host"
    assert objects.user_input[0].path == split.function.output[0].path


def test_a_service_of_oscar_becomes_a_function() -> None:
    detector, service = shape("two-providers").functions.aws
    assert service.name == "shape-anonymise"
    assert (service.function.memory_mib, service.function.init_script) == (2048, "script.sh")
    assert service.image == "example/blurry-faces"
    assert [str(o.path) for o in service.function.output] == [
        "shape-anonymise/output",
        "shape-mask/intermediate",
    ]
    assert detector.user_input[0].path == service.function.output[1].path


def test_the_oldest_shape_keeps_its_filters() -> None:
    first, second = shape("list-of-functions").functions.aws
    assert [o.suffixes for o in first.function.output] == [("wav", "srt"), ("avi",)]
    assert second.function.output[0].prefixes == ("my_file",)


def test_the_file_of_scars_paper_requests_a_device() -> None:
    (blast,) = shape("paper-figure-4").functions.aws
    assert blast.intermediate.bucket == "shape-blast-intermediate"
    assert blast.function.container.variables == {"LD_LIBRARY_PATH": "/opt/rcuda/lib"}
    assert blast.gpu is not None
    assert blast.gpu.middleware == "rcuda"
