"""A function's part of a file, as written."""

from __future__ import annotations

from pathlib import Path

from fdl.parse import parse
from fdl.written import written

FILE = """\
# two functions
functions:
  aws:
  - lambda:            # the first
      name: first
      memory: 512
      init_script: a.sh
      environment: {Variables: {PLACE: "of #1", KEY: 'k-1'}}
      container:
        environment:
          Variables:
            LONG: |
              line-one
              line-two
    secrets: {API: "ssm:/api"}
    job: {input: [{path: inputs/a}]}   # password: hunter2
  - lambda:
      name: second
      init_script: b.sh
"""


def test_a_function_is_shown_as_it_was_written() -> None:
    found = written(parse(FILE, "f.yaml"), "second")
    assert found is not None
    assert (found.file, found.line) == ("f.yaml", 17)
    assert found.text == "  - lambda:\n      name: second\n      init_script: b.sh"


def test_values_of_variables_and_secrets_are_masked() -> None:
    found = written(parse(FILE, "f.yaml"), "first")
    assert found is not None
    for hidden in ("of #1", "k-1", "line-one", "line-two", "hunter2"):
        assert hidden not in found.text
    for shown in ("# the first", "PLACE: ***", "KEY: ***", 'API: "ssm:/api"', "init_script: a.sh"):
        assert shown in found.text
    assert "second" not in found.text


def test_an_unknown_function_has_no_lines() -> None:
    assert written(parse(FILE, "f.yaml"), "third") is None


def test_the_steps_of_a_group_are_its_lines() -> None:
    text = FILE.replace("  - lambda:", "  - group: both\n    lambda:")
    found = written(parse(text, "f.yaml"), "both")
    assert found is not None
    assert "name: first" in found.text
    assert "name: second" in found.text


def test_an_older_shape_is_shown_whole() -> None:
    text = (Path(__file__).parent / "shapes" / "flat-with-s3.yaml").read_text()
    found = written(parse(text, "old.yaml"), "shape-flat")
    assert found is not None
    assert "example/detector" in found.text
    assert "LEVEL: ***" in found.text
