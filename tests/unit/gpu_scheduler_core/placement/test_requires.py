"""Constraints on versions of libraries, driver and runtime: exact, minimum, maximum."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError
from gpu_scheduler.constraints import canonical, constraint_problem, of_libraries, parse_constraint
from gpu_scheduler.core.inventory.devices import DeviceState, fits
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import World, device, idle_state, world_with


def made(driver: str = "550.54.15", runtime: str = "12.4", **libraries: str) -> DeviceState:
    fields: dict[str, Any] = {
        "model": "K600",
        "driver": driver,
        "runtime": runtime,
        "libraries": libraries,
    }
    return idle_state(device("d", **fields))


K600 = made(onnxruntime="1.12.1", numpy="2.0.0")


@pytest.mark.parametrize(
    ("constraint", "fits_it"),
    [
        ("onnxruntime==1.12.1", True),
        ("onnxruntime==1.12", False),
        ("onnxruntime==1.12.*", True),
        ("onnxruntime>=1.10,<1.13", True),
        ("onnxruntime>=1.10, <1.12", False),
        ("onnxruntime<=1.12.1", True),
        ("onnxruntime<1.9", False),  # as numbers: 1.12 is above 1.9
        ("onnxruntime!=1.12.1", False),
        ("onnxruntime~=1.12.0", True),
        ("ONNXRuntime>1", True),
        ("numpy==2", True),  # zeros at the end do not count
        ("driver>=550", True),
        ("driver==550.54.15", True),
        ("driver>=550.90", False),
        ("driver<550.54.15", False),
        ("runtime>=12,<13", True),
        ("opencv-python-headless>=4", False),  # the host does not have it
    ],
)
def test_versions(constraint: str, fits_it: bool) -> None:
    request = Request(requires=(constraint,))
    assert fits(request, K600) is (None if fits_it else NoFit.VERSION)
    both = Request(requires=("numpy>=1", constraint))
    assert fits(both, K600) is (None if fits_it else NoFit.VERSION)


def test_an_unknown_version_meets_no_constraint() -> None:
    request = Request(requires=("driver>=0",))
    assert fits(request, made(driver="")) is NoFit.VERSION
    assert fits(Request(requires=("onnxruntime>=0",)), made(onnxruntime="nightly")) is NoFit.VERSION
    assert fits(Request(requires=("onnxruntime>=1.2",)), made(onnxruntime="1.20.dev3+cpu")) is None


@pytest.mark.parametrize(
    "text", ["", "onnx", "1.2", ">=1", "onnx 1.2", "onnx>=", "onnx=>1", "o>=x"]
)
def test_what_is_not_a_constraint_is_refused(text: str) -> None:
    problem = constraint_problem(text)
    assert problem is not None
    assert "is not a name with versions, such as onnxruntime>=1.10,<1.13" in problem
    with pytest.raises(AppError, match="is not a name with versions"):
        Request(requires=(text,))


def test_the_name_of_a_library_has_one_spelling() -> None:
    assert canonical("Opencv_Python.Headless") == "opencv-python-headless"
    assert str(parse_constraint(" Scoring_Matrices >= 0.3, <1 ")) == "scoring-matrices>=0.3,<1"


def test_constraints_of_libraries_alone_stay_with_a_fallback_to_a_cpu() -> None:
    requires = ("onnxruntime<1.13", "driver>=550", "Runtime>=12")
    assert of_libraries(requires) == ("onnxruntime<1.13",)


def test_a_constraint_decides_between_devices_of_one_model() -> None:
    """The K600 of the HARDLESS paper needs an old ONNX: its device never takes other events."""
    world = World()
    old = device("old", libraries={"onnxruntime": "1.12.1"})
    new = device("new", index=1, libraries={"onnxruntime": "1.20.0"})
    world.host("h", old, new)
    for number in range(3):
        lease = world.granted(f"o{number}", Request(requires=("onnxruntime<1.13",)))
        assert lease.shares[0].device == "old"
        lease = world.granted(f"n{number}", Request(requires=("onnxruntime>=1.13",)))
        assert lease.shares[0].device == "new"
    gang = world.reserve("both", Request(count=2, requires=("onnxruntime>=1.13",)))
    assert gang.outcome is answers.Outcome.IMPOSSIBLE


def test_explain_names_the_constraint_and_the_versions() -> None:
    world = world_with(device("old", libraries={"onnxruntime": "1.12.1"}), device("none", index=1))
    request = Request(requires=("onnxruntime>=1.13",))
    answer = world.reserve("a", request)
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    short = answer.explanation.short
    assert (short.what, short.wanted) == (NoFit.VERSION, "onnxruntime>=1.13")
    assert short.most == "onnxruntime 1.12.1/unknown"
    assert answer.explanation.counts == {NoFit.VERSION: 2}
    assert answer.explanation.largest.requires == ()
    sentence = world.ask(ops.Explain, request=request).explanation.sentence
    assert "1 × device with onnxruntime>=1.13: such devices have onnxruntime 1.12.1/unk" in sentence
    assert "2 with another version of a library, driver or runtime" in sentence


def test_a_host_that_updates_a_library_serves_waiting_requests() -> None:
    world = world_with(device("d", libraries={"onnxruntime": "1.12.1"}))
    world.host("other", device("o", libraries={"onnxruntime": "1.20"}))
    lease = world.granted("a", Request(memory_mib=1000, requires=("onnxruntime>=1.13",)))
    waiting = world.reserve("b", Request(memory_mib=1000, requires=("onnxruntime>=1.13",)))
    assert waiting.outcome is answers.Outcome.WAITING
    world.report("h", device("d", libraries={"onnxruntime": "1.21"}))
    assert world.grants() == ["b"]
    world.release(lease)
