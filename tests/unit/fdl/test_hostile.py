"""Files that mean harm, or look other than they are: refused with a reason, and never a crash."""
# ruff: noqa: E501  (one line per message, as people see it)

import pytest

from corekit.errors import AppError
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse

ONE = (
    "functions:\n  aws:\n  - lambda:\n      name: f\n      init_script: s\n"
    "      input: [buc/in]\n      output: [buc/out]\n"
)


def said(text: str) -> list[str]:
    """Errors and warnings, without their places."""
    try:
        notes = lint(parse(text, "f"))
    except AppError as error:
        faults = error.details.get("faults", [error.details])
        return [str(fault["problem"]) for fault in faults]
    return [f"{n.path}: {n.message}" for n in notes if n.severity is not Severity.NOTE]


def many_places(functions: int, places: int) -> str:
    lines = ["functions:", "  aws:"]
    for f in range(functions):
        inputs = ", ".join(f"in-{f}-{p}" for p in range(places))
        lines.append(
            f"  - lambda: {{name: f{f}, init_script: s, input: [{inputs}], output: [out]}}"
        )
    return "\n".join(lines) + "\n"


HOSTILE = {
    "aliases in aliases": (
        "a: &a [x, x]\nb: [*a, *a]\n",
        "the anchor &a is not allowed here: quote the value",
    ),
    "a hundred thousand brackets": ("a: " + "[" * 100_000, "nested deeper than 24 levels"),
    "a hundred thousand dashes": ("- " * 100_000, "nested deeper than 24 levels"),
    "more places than are compared": (
        many_places(6, 100),
        "functions: 606 paths and filters, more than the 500 of one file; write several files",
    ),
    "thousands of functions": (
        "functions:\n" + "".join(f"  f{i}: {{image: a/b}}\n" for i in range(3000)),
        "functions.aws: more than 100 items",
    ),
    "half a character": (
        ONE.replace("[buc/in]", '["buc/a\\ud800b"]'),
        "U+D800 is half a character: leave the escape out",
    ),
    "half a character in a key": (
        '"\\udfff": 1\n' + ONE,
        "U+DFFF is half a character: leave the escape out",
    ),
    "a turned comment": (
        ONE + "# \u202e\n",
        "the character U+202E turns the direction of the text after it; leave it out",
    ),
    "a space of no width": (
        ONE.replace("[buc/in]", '["buc/a\\u200bb"]'),
        "functions.aws[0].lambda.input[0]: 'buc/a\\u200bb' has the invisible character U+200B; leave it out",
    ),
    "a line separator": (
        ONE.replace("[buc/in]", '["buc/a\\u2028b"]'),
        "functions.aws[0].lambda.input[0]: 'buc/a\\u2028b' has the invisible character U+2028; leave it out",
    ),
    "tag characters": (
        ONE.replace("[buc/in]", '["buc/a\\U000e0041b"]'),
        "functions.aws[0].lambda.input[0]: 'buc/a\\U000e0041b' has the invisible character U+E0041; leave it out",
    ),
    "a letter of another script": (
        ONE.replace("name: f", "name: \u0430"),
        "functions.aws[0].lambda.name: '\u0430' is not a function name (letters, digits, - and _, up to 64)",
    ),
    "a very long name": (
        ONE.replace("name: f", "name: " + "f" * 65),
        "functions.aws[0].lambda.name: 'fffffffffffffffffffffffffffffffffffff...' is not a function name (letters, digits, - and _, up to 64)",
    ),
    "a very long number": (
        ONE + "      memory: " + "9" * 4000 + "\n",
        "functions.aws[0].lambda.memory: expected an integer, got '9999999999999999999999999999999999999...'",
    ),
    "not a number": (
        ONE + "    gpu: {max_wait: .nan}\n",
        "functions.aws[0].gpu.max_wait: '.nan' is not a duration; write seconds, or a unit as in 10m",
    ),
    "an endless memory": (
        ONE + "    gpu: {memory: " + "9" * 400 + "}\n",
        "functions.aws[0].gpu.memory: '9999999999999999999999999999999999999...' is not a memory size; write MiB, or a unit as in 4GiB",
    ),
    "no architecture": (
        ONE + "      architectures: []\n",
        "functions.aws[0].lambda.architectures: needs 1 item at least; or leave it out",
    ),
    "a mount above": (
        ONE
        + "      vpc: {SubnetIds: [a]}\n      file_system: [{Arn: 'arn:x', LocalMountPath: /mnt/../etc}]\n",
        "functions.aws[0].lambda.file_system[0].LocalMountPath: '/mnt/../etc' is not a folder /mnt/NAME",
    ),
    "six layers": (
        ONE + "      layers: [arn:a, arn:b, arn:c, arn:d, arn:e, arn:f]\n",
        "functions.aws[0].lambda.layers: more than 5 items",
    ),
    "a script of the machine": (
        ONE.replace("init_script: s", "init_script: /etc/passwd"),
        "functions.aws[0].lambda.init_script: '/etc/passwd' lies outside of this file's folder: deploy needs --allow-outside",
    ),
    "the whole machine": (
        ONE + "      extra_payload: ../..\n",
        "functions.aws[0].lambda.extra_payload: '../..' lies outside of this file's folder: deploy needs --allow-outside",
    ),
    "dead letters among the jobs": (
        ONE + "    job: {queue: {name: q, dead_letter: q}}\n",
        "functions.aws[0].job.queue: 'q' is named for two of its queues; each needs a name of its own",
    ),
    "one rule in another": (
        ONE.replace("[buc/in]", "[buc/in, buc/in/deep]") + "    job: none\n",
        "functions.aws[0].lambda.input[1]: buc/in* and buc/in/deep* take the same objects: S3 takes one rule for each; keep the wider",
    ),
    "one suffix in another": (
        ONE.replace("[buc/in]", "[{path: buc/in, suffix: [.gz, .tar.gz]}]"),
        "functions.aws[0].lambda.input[0]: buc/in*.gz and buc/in*.tar.gz take the same objects: S3 takes one rule for each; keep the wider",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_one_reason_for_each(case: str) -> None:
    text, reason = HOSTILE[case]
    assert said(text) == [reason]


def test_words_that_need_joiners_have_them() -> None:
    """Persian and several scripts of India write with the joiner and the non-joiner."""
    assert said(ONE.replace("[buc/in]", '["buc/\u0645\u06cc\u200c\u062e"]')) == []


def test_values_of_variables_are_anybodys() -> None:
    assert said(ONE + '      container: {environment: {Variables: {A: "\\x1b\\u200b"}}}\n') == []
