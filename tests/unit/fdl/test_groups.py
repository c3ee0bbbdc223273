"""Groups: several steps as one function, with the sum of their needs; and what cannot be one."""
# ruff: noqa: E501  (one line per message, as people see it)

import json

import pytest

from fdl.graph.drawing import dot, mermaid, text
from fdl.graph.graph import graph_of
from fdl.parse import parse
from fdl.plan.groups import deployed, steps_json
from fdl.plan.resources import FunctionResource, Notification, Record
from gpu_scheduler.model import Request
from tests.unit.fdl.definitions import LOCAL, errors, resources

TEXT = """\
functions:
  aws:
  - group: film
    lambda:
      name: faces
      init_script: faces.py
      memory: 1024
      timeout: 200
      container: {environment: {Variables: {MODEL: small}}}
      input: [{path: inner/frames, suffix: [.png]}]
      output: [{path: answers/faces}]
    gpu: {memory: 2GiB, compute: {guarantee: 29.7%}, max_wait: 5m}
  - group: film
    lambda:
      name: frames
      init_script: split.sh
      memory: 512
      timeout: 100
      input: [{path: films/in, suffix: [.avi]}]
      output: [{path: inner/frames, suffix: [.png]}, {path: inner/sound, suffix: [.wav]}]
    gpu: {memory: 1GiB, compute: {guarantee: 10.3, limit: 50.5}, priority: 3}
    job: {attempts: 2}
  - group: film
    lambda:
      name: words
      handler: words.hear
      input: [{path: inner/sound, suffix: [.wav]}]
      output: [{path: answers/words}]
  - lambda:
      name: index
      init_script: index.sh
      input: [{path: answers/faces}]
"""


def test_a_group_is_one_function_with_the_sum_of_its_steps_needs() -> None:
    document = parse(TEXT)
    assert errors(TEXT) == []
    group, index = deployed(document)
    assert (group.name, index.name) == ("film", "index")
    assert [step.name for step in group.steps] == ["frames", "faces", "words"]  # what begins, first
    assert group.gpu is not None
    assert group.gpu.request == Request(
        memory_mib=3072, compute_guarantee_pct=40, compute_limit_pct=100, priority=3, max_wait_s=300
    )
    assert (group.function.memory_mib, group.function.timeout_s) == (2048, 600)
    assert [str(s.path) for s in group.user_input] == ["films/in"]
    assert [str(o.path) for o in group.function.output] == ["answers/faces", "answers/words"]


def test_a_group_has_one_queue_one_trigger_and_no_bucket_for_inner_files() -> None:
    made = resources(TEXT, LOCAL)
    (function,) = [r for r in made if isinstance(r, FunctionResource)]
    assert function.variables["ORCHGPU_STEPS"] == "script/steps.json"
    assert "ORCHGPU_SCRIPT" not in function.variables
    (record,) = [r for r in made if isinstance(r, Record)]
    assert (record.body["name"], record.body["attempts_max"]) == ("film", 2)
    rules = [r for r in made if isinstance(r, Notification)]
    assert [r.bucket for r in rules] == ["films", "film-intermediate", "film-intermediate"]
    assert "bucket/inner" not in {
        f"{getattr(r, 'kind', '')}/{getattr(r, 'name', '')}" for r in made
    }


def test_the_package_lists_inputs_and_outputs_of_each_step() -> None:
    group, _ = deployed(parse(TEXT))
    frames, faces, words = json.loads(steps_json(group))
    assert (frames["script"], frames["inputs"]) == ("script/frames/split.sh", [])
    assert faces["inputs"] == [
        {"bucket": "inner", "prefix": "frames", "suffix": [".png"], "filter": []}
    ]
    assert faces["variables"] == {"MODEL": "small"}
    assert (words["handler"], words["folder"], words["script"]) == (
        "words.hear",
        "script/words",
        "",
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "timeout: 200",
            "timeout: 600",
            "functions.aws[0].group: its steps may take 1000 s together; Lambda has 900",
        ),
        (
            "memory: 1024",
            "memory: 10240",
            "functions.aws[0].group: its steps need 11264 MB together; Lambda has 10240",
        ),
        (
            "guarantee: 29.7%",
            "guarantee: 95",
            "functions.aws[0].group: the request of its steps together is invalid: the guarantee of compute 105.3 must lie in 0…100",
        ),
        (
            "path: inner/sound, suffix: [.wav]}]\n      output: [{path: answers/words",
            "path: other}]\n      output: [{path: answers/words",
            "functions.aws[2].group: a group begins with one step, whose input no other step writes: frames begins it too",
        ),
        (
            "path: films/in, suffix: [.avi]",
            "path: answers/words",
            "functions.aws[2].group: a group begins with one step, whose input no other step writes: nothing comes into it",
        ),
        (
            "name: words\n",
            "name: words\n      runtime: python3.11\n",
            "functions.aws[2].lambda.runtime: runtime differs from faces's: a group has one sandbox and one lease",
        ),
        (
            "priority: 3",
            "tenant: other",
            "functions.aws[1].gpu.tenant: tenant differs from faces's: a group has one sandbox and one lease",
        ),
        (
            "max_wait: 5m}",
            "max_wait: 5m}\n    job: {}",
            "functions.aws[0].job: jobs of the group start at frames",
        ),
        ("name: index", "name: film", "functions.aws[0].group: a function is named 'film' too"),
        (
            "    gpu: {memory: 2GiB,",
            "    gpu: {group: film, memory: 2GiB,",
            "functions.aws[0].gpu.group: write `group: NAME` next to `gpu:`",
        ),
    ],
)
def test_steps_that_cannot_share_a_sandbox_are_errors(old: str, new: str, said: str) -> None:
    assert TEXT.count(old) == 1
    try:
        found = errors(TEXT.replace(old, new))
    except Exception as error:  # a key that is refused while it is read
        found = [str(error)]
    assert any(said in line for line in found), found


def test_a_group_is_drawn_as_one() -> None:
    graph = graph_of(parse(TEXT))
    assert 'subgraph "cluster film" { label="film"; "faces"' in dot(graph)
    assert "faces  [1 × any device, 2048 MiB]  (group film)" in text(graph)
    assert '  subgraph g0 ["film"]\n  f0["faces<br/>' in mermaid(graph)
