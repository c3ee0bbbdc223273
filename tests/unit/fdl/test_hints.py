"""Hints lead to keys with an effect, and messages name the written keys."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError
from fdl.keys.oscar import OSCAR_SERVICE
from fdl.keys.reference import known_keys, placement_hint
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.resources import DeployTarget
from tests.unit.fdl.definitions import AWS, LOCAL

BLOCKS = (
    "",
    "functions.aws[0]",
    "functions.aws[0].lambda",
    "functions.aws[0].lambda.container",
    "functions.aws[0].gpu",
    "functions.aws[0].job",
    "functions.aws[0].iam",
)
#: Names of keys that change nothing anywhere in a file, or are refused.
_NAMES = """
advisory alpine asynchronous batch delete_image ecr_image event invocation_type
layer_name license_info log_type max_payload_size max_receive_count max_s3_payload_size
provider scar storage_providers version visibility_timeout
"""
WITHOUT_EFFECT = set(_NAMES.split())
PATHS = {known.path.replace("[]", "") for known in known_keys()}
NAMES = sorted({known.path.rpartition(".")[2] for known in known_keys()})


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_EFFECT))
def test_a_hint_names_blocks_that_have_the_key(name: str) -> None:
    hint = placement_hint("functions.aws[0].lambda", name)
    assert hint.startswith("; it belongs ")
    for place in hint.removeprefix("; it belongs ").split(" or "):
        block = re.sub(r"^in '(.*)'$", r"\1", place)
        ends = {"at the top of the file": name, "next to 'lambda'": f"functions.aws.{name}"}
        assert any(path.endswith(ends.get(block, f"{block}.{name}")) for path in PATHS)


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_hint_leads_to_no_key_without_effect(name: str) -> None:
    hint = placement_hint("functions.aws[0].lambda", name)
    assert hint != ""
    assert not hint.startswith("; it belongs")


def test_a_misplaced_batch_block_gets_its_hint() -> None:
    text = "functions:\n  aws:\n  - lambda:\n      name: f\n      batch: {}\n"
    with pytest.raises(AppError, match="unknown key 'batch'; leave it out: hosts are used inst"):
        parse(text, "f.yaml")


@pytest.mark.parametrize("name", OSCAR_SERVICE.keys)
@pytest.mark.parametrize("block", BLOCKS)
def test_every_key_of_oscar_has_a_hint(name: str, block: str) -> None:
    assert placement_hint(block, name) != ""


# ---------------------------------------------------------------------- findings and written keys

KEYS = {
    "      timeout": ["1", "8", "15", "900"],
    "      memory": ["128", "10240"],
    "      runtime": ["image", "python3.12"],
    "      init_script": ["s.sh", "/etc/x"],
    "      architectures": ["[arm64]"],
    "      container": [
        "{image: 'a/b:1-arm64'}",
        "{timeout_threshold: 20}",
        "{create_image: true}",
        "{environment: {Variables: {ORCHGPU_X: 1, A_TOKEN: b}}}",
    ],
    "      environment": ["{Variables: {AWS_X: 1}}"],
    "      input": ["[buc/in]", "[buc]", "[buc/in, oth/in]", "[{path: buc/in, suffix: '*.a'}]"],
    "      output": ["[buc/in]", "[buc/out]", "[f-intermediate]"],
    "      region": ["eu-west-1"],
    "      file_system": ["[{Arn: 'arn:x', LocalMountPath: /mnt/x}]"],
    "    iam": ["{region: us-east-1}", "{create: true}"],
    "    gpu": [
        "",
        "{count: 4, middleware: cricket}",
        "{on_unavailable: requeue}",
        "{lease_length: 5, deadline: 3, max_wait: 9}",
    ],
    "    job": [
        "",
        "{completion: object}",
        "{object: 'out/{nope}'}",
        "{queue: {retention: 60}}",
        "{intermediate: buc/x}",
        "{queue: {name: a, dead_letter: a}}",
    ],
    "    group": ["g"],
}


@settings(max_examples=300)
@given(
    st.lists(
        st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in KEYS.items()}),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from([None, LOCAL, AWS]),
)
def test_no_finding_is_about_a_key_that_was_not_written(
    functions: list[dict[str, str]], place: DeployTarget | None
) -> None:
    """The path of a finding consists of keys of the file, whatever was left to its default."""
    text = "functions:\n  aws:\n"
    for number, keys in enumerate(functions):
        text += f"  - lambda:\n      name: f{number}\n"
        for key in KEYS:  # those of `lambda` first
            text += f"{key}: {keys[key]}\n" if key in keys else ""
    try:
        notes = lint(parse(text, "f"), files={}, place=place)
    except AppError:
        return
    for note in notes:
        for word in re.findall(r"[A-Za-z_]+", note.path):
            assert re.search(rf"\b{word}\b", text), note
