"""The table of all keys: on the page, with a meaning for each."""

import pytest

from corekit.errors import AppError
from fdl.keys.jobs import GPU
from fdl.keys.reference import KeyStatus, KnownKey, explain, known_keys
from fdl.lint.lint import lint
from fdl.parse import parse
from gpu_scheduler.request_options import REQUEST_OPTIONS
from tests.unit.fdl.definitions import LOCAL
from tools.fdl_table import PAGE, renewed

#: The smallest file that is read; the key under test follows.
WHOLE = "functions:\n  aws:\n  - lambda:\n      name: f\n"
#: A valid value for keys that are refused or have no effect, where "x" is not one.
VALUES = {
    "alpine": "true",
    "max_payload_size": "1",
    "max_s3_payload_size": "1",
    "asynchronous": "true",
    "invocation_type": "Event",
    "log_type": "Tail",
    "delete_image": "false",
    "log_retention_policy_in_days": "30",
    "advisory": "true",
}


def test_the_page_shows_the_table() -> None:
    """Renew it with `python -m tools.fdl_table`."""
    assert PAGE.read_text() == renewed(PAGE.read_text())


def test_every_key_has_a_meaning() -> None:
    silent = [known.path for known in known_keys() if not known.meaning]
    assert silent == []


def test_every_word_of_a_request_is_a_key() -> None:
    assert [word.key for word in REQUEST_OPTIONS if word.key not in GPU.keys] == []


def _file_with(known: KnownKey) -> str:
    """A file that declares one key, nested by its path."""
    words = known.path.replace("[]", "").removeprefix("functions.aws.").split(".")
    value = next((v for k, v in VALUES.items() if known.path.endswith(k)), "x")
    text = f"{words[-1]}: {value}"
    for word in reversed(words[1:-1]):
        text = f"{word}: {{{text}}}"
    if words[0] in ("storage_providers", "workflows"):
        return WHOLE + f"{words[0]}: {{{text}}}\n"
    if len(words) == 1:
        return WHOLE + text + "\n"
    if words[0] == "lambda":
        return WHOLE + f"      {text}\n"
    return WHOLE + f"    {words[0]}: {{{text}}}\n"


REFUSED = [known for known in known_keys() if known.status is KeyStatus.REFUSED]
NO_EFFECT = [known for known in known_keys() if known.status is KeyStatus.NO_EFFECT]


@pytest.mark.parametrize("known", REFUSED, ids=lambda known: known.short)
def test_the_error_of_a_refused_key_names_the_replacement(known: KnownKey) -> None:
    with pytest.raises(AppError) as caught:
        parse(_file_with(known), "f.yaml")
    assert known.key.refused in caught.value.message


@pytest.mark.parametrize("known", NO_EFFECT, ids=lambda known: known.short)
def test_a_key_without_effect_gives_a_note(known: KnownKey) -> None:
    notes = lint(parse(_file_with(known), "f.yaml"), place=LOCAL)
    paths = [n.path.replace("[0]", "[]") for n in notes if n.message.startswith("no effect")]
    assert paths == [known.path]


def test_a_key_is_found_by_its_end() -> None:
    (memory,) = explain("gpu.memory")
    assert memory.text() == (
        "functions.aws[].gpu.memory\n  Memory of each device: a size (a unit is 256 MiB), or a"
        " percentage of the device.\n"
        "  value: MiB, '4GiB', '30 units' or '12.5%'\n"
        "  default: all of an exclusive device, none of a shared one\n"
        "  supported"
    )
    assert [known.short for known in explain("memory")] == ["lambda.memory", "gpu.memory"]
    with pytest.raises(AppError, match="no key is named 'memroy'; did you mean 'memory'"):
        explain("memroy")
