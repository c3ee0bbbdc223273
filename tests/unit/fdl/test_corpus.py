"""Bad definitions, each with its exact verdict; none is a crash, none is taken for a good file."""
# ruff: noqa: E501  (one line per case, as people see it)

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.text.compose import BYTES_MAX

ONE = "functions:\n  aws:\n  - lambda:\n      name: a\n      init_script: s\n"
GPU = ONE + "      input: [{path: inn}]\n      output: [{path: out}]\n    gpu: {%s}\n"
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nfunctions: {aws: [*c]}\n"

CORPUS: dict[str, tuple[str | bytes, str]] = {
    "alias bomb": (BOMB, "f.yaml:1:4: error: the anchor &a is not allowed here: quote the value"),
    "alias to itself": (
        "a: &a [*a]\n",
        "f.yaml:1:4: error: the anchor &a is not allowed here: quote the value",
    ),
    "python object tag": (
        "functions: !!python/object/apply:os.system [id]\n",
        "f.yaml:1:12: error: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed here: leave it out, or quote the value",
    ),
    "local tag": (
        "functions: !include other.yaml\n",
        "f.yaml:1:12: error: the tag !include is not allowed here: leave it out, or quote the value",
    ),
    "binary tag": (
        "functions: !!binary aGVsbG8=\n",
        "f.yaml:1:12: error: the tag tag:yaml.org,2002:binary is not allowed here: leave it out, or quote the value",
    ),
    "key twice": (
        ONE + "      init_script: t\n",
        "f.yaml:6:7: error: 'init_script' is written twice, first on line 5; keep one",
    ),
    "block twice": (
        GPU % "" + "    gpu: {}\n",
        "f.yaml:9:5: error: 'gpu' is written twice, first on line 8; keep one",
    ),
    "merge key": (
        ONE + "      <<: {memory: 512}\n",
        "f.yaml:6:7: error: << merges mappings: write the keys out",
    ),
    "list for a number": (
        ONE + "      memory: [512]\n",
        "f.yaml:6:15: error: functions.aws[0].lambda.memory: expected an integer, got a list",
    ),
    "text for a list": (
        ONE + "      output: out\n",
        "f.yaml:6:15: error: functions.aws[0].lambda.output: expected a list, got 'out'",
    ),
    "mapping for text": (
        ONE + "      description: {a: b}\n",
        "f.yaml:6:20: error: functions.aws[0].lambda.description: expected a text of up to 256 characters, got a mapping; a text that begins with [ or { needs quotes",
    ),
    "number for a mapping": (
        "functions: 7\n",
        "f.yaml:1:12: error: functions: expected a mapping, got '7'",
    ),
    "name without text": (
        "functions: {aws: [{lambda: {name: }}]}\n",
        "f.yaml:1:34: error: functions.aws[0].lambda.name: expected a function name (letters, digits, - and _, up to 64), got nothing",
    ),
    "negative count": (
        GPU % "count: -1",
        "f.yaml:8:18: error: functions.aws[0].gpu.count: -1 must lie in 1…64",
    ),
    "count not a number": (
        GPU % "count: .nan",
        "f.yaml:8:18: error: functions.aws[0].gpu.count: expected an integer, got '.nan'",
    ),
    "count infinite": (
        GPU % "count: .inf",
        "f.yaml:8:18: error: functions.aws[0].gpu.count: expected an integer, got '.inf'",
    ),
    "count huge": (
        GPU % "count: 99999999999999999999",
        "f.yaml:8:18: error: functions.aws[0].gpu.count: 99999999999999999999 must lie in 1…64",
    ),
    "count a fraction": (
        GPU % "count: 1.5",
        "f.yaml:8:18: error: functions.aws[0].gpu.count: expected an integer, got '1.5'",
    ),
    "memory negative": (
        GPU % "memory: -4GiB",
        "f.yaml:8:19: error: functions.aws[0].gpu.memory: '-4GiB' is not a memory size; write MiB, or a unit as in 4GiB",
    ),
    "memory beyond any device": (
        GPU % "memory: 4096TiB",
        "f.yaml:8:19: error: functions.aws[0].gpu.memory: 4294967296 MiB is more than any device has",
    ),
    "compute beyond the whole": (
        GPU % "compute: 101%",
        "f.yaml:8:20: error: functions.aws[0].gpu.compute: '101%' is not a percentage in 0…100",
    ),
    "wait for ever": (
        GPU % "max_wait: 1e999",
        "f.yaml:8:21: error: functions.aws[0].gpu.max_wait: '1e999' is not a duration; write seconds, or a unit as in 10m",
    ),
    "output is input": (
        ONE + "      input: [{path: buc/in}]\n      output: [{path: buc/in}]\n",
        "f.yaml:7:7: error: functions.aws[0].lambda.output: what it writes triggers a again; change a prefix",
    ),
    "output below input": (
        ONE + "      input: [{path: buc}]\n      output: [{path: buc/out}]\n",
        "f.yaml:7:7: error: functions.aws[0].lambda.output: what it writes triggers a again; change a prefix",
    ),
    "two functions of one name": (
        ONE + "  - lambda: {name: a, init_script: s}\n",
        "f.yaml:6:14: error: functions.aws[1].lambda.name: 'a' is declared twice",
    ),
    "a provider nobody knows": (
        "functions: {gcp: [{lambda: {name: a}}]}\n",
        "f.yaml:1:13: error: functions: unknown key 'gcp'; a function is an element of the list `functions.aws`",
    ),
    "a file too large": (
        "#" * (BYTES_MAX + 1),
        "f.yaml: error: too large; an FDL file may have at most 262144 bytes",
    ),
    "too deep": (
        "a: " + "{a: " * 30 + "1" + "}" * 30 + "\n",
        "f.yaml:1:96: error: nested deeper than 24 levels",
    ),
    "tabs": (
        "functions:\n\taws: []\n",
        "f.yaml:2:1: error: not valid YAML: a tab: YAML indents with spaces; write spaces instead",
    ),
    "tab after a key": (
        "functions:\t{aws: []}\n",
        "f.yaml:1:11: error: not valid YAML: a tab: YAML indents with spaces; write spaces instead",
    ),
    "NUL": (
        "functions: a\0b\n",
        "f.yaml:1:13: error: not valid YAML: the character U+0000 is not allowed; leave it out",
    ),
    "bell in text": (
        'functions: "\\a"\n',
        "f.yaml:1:12: error: functions: expected a mapping, got '\\x07'",
    ),
    "byte order mark": (
        "\ufeff" + ONE + "      memmory: 1\n",
        "f.yaml:6:7: error: functions.aws[0].lambda: unknown key 'memmory'; did you mean 'memory'?",
    ),
    "not UTF-8": (
        b"functions: \xff\n",
        "f.yaml:1:12: error: byte 0xff is not UTF-8; save the file as UTF-8",
    ),
    "UTF-16": (
        "functions: {}".encode("utf-16"),
        "f.yaml:1:1: error: the file is in UTF-16; save it as UTF-8",
    ),
    "two documents": (
        "functions: {}\n---\nfunctions: {}\n",
        "f.yaml:2:1: error: a second document begins here; one file holds one",
    ),
    "empty": ("", "f.yaml:1:1: error: the file is empty; it needs 'functions:'"),
    "comment alone": ("# nothing\n", "f.yaml:1:1: error: the file is empty; it needs 'functions:'"),
    "unclosed quote": (
        'functions: "\n',
        "f.yaml:1:12: error: not valid YAML: the quote that opens here is never closed",
    ),
    "path out of the bucket": (
        ONE + "      input: [{path: buc/../other}]\n",
        "f.yaml:6:22: error: functions.aws[0].lambda.input[0].path: the prefix '../other' has an empty or dotted part",
    ),
    "bucket of capitals": (
        ONE + "      input: [{path: Bucket/in}]\n",
        "f.yaml:6:22: error: functions.aws[0].lambda.input[0].path: 'Bucket' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'bucket'",
    ),
    "octal or not": (
        ONE + "      memory: 0400\n",
        "f.yaml:6:15: error: functions.aws[0].lambda.memory: '0400' has a leading zero, and YAML 1.1 reads it as octal: write 400 or 256",
    ),
    "no octal at all": (
        ONE + "      timeout: 0890\n",
        "f.yaml:6:16: error: functions.aws[0].lambda.timeout: '0890' has a leading zero: write 890",
    ),
    "negative octal": (
        ONE + "    gpu: {priority: -010}\n",
        "f.yaml:6:21: error: functions.aws[0].gpu.priority: '-010' has a leading zero, and YAML 1.1 reads it as octal: write -10 or -8",
    ),
    "octal memory of a device": (
        ONE + "    gpu: {memory: 0400}\n",
        "f.yaml:6:19: error: functions.aws[0].gpu.memory: '0400' has a leading zero, and YAML 1.1 reads it as octal: write 400 or 256",
    ),
    "octal seconds": (
        ONE + "    gpu: {max_wait: 010}\n",
        "f.yaml:6:21: error: functions.aws[0].gpu.max_wait: '010' has a leading zero, and YAML 1.1 reads it as octal: write 10 or 8",
    ),
    "octal percent": (
        ONE + "    gpu: {compute: 050}\n",
        "f.yaml:6:20: error: functions.aws[0].gpu.compute: '050' has a leading zero, and YAML 1.1 reads it as octal: write 50 or 40",
    ),
    "digits of another script": (
        ONE + "    gpu: {memory: ٤٠٠}\n",
        "f.yaml:6:19: error: functions.aws[0].gpu.memory: '٤٠٠' is not a memory size; write MiB, or a unit as in 4GiB",
    ),
    "whole number of another script": (
        ONE + "      memory: ٤٠٠\n",
        "f.yaml:6:15: error: functions.aws[0].lambda.memory: expected an integer, got '٤٠٠'",
    ),
    "direction in a path": (
        ONE + '      input: ["buc/\\u202egnp.exe"]\n',
        "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 'buc/\\u202egnp.exe' has the invisible character U+202E; leave it out",
    ),
    "control in a suffix": (
        ONE + '      input: [{path: buc, suffix: "\\x1b[2J"}]\n',
        "f.yaml:6:35: error: functions.aws[0].lambda.input[0].suffix: '\\x1b[2J' has the invisible character U+001B; leave it out",
    ),
    "direction in a description": (
        ONE + '      description: "\\u2066a"\n',
        "f.yaml:6:20: error: functions.aws[0].lambda.description: '\\u2066a' has the invisible character U+2066; leave it out",
    ),
    "no share of compute": (
        ONE + "    gpu: {compute: {limit: 0}}\n",
        "f.yaml:6:28: error: functions.aws[0].gpu.compute.limit: '0' is not a percentage in 1…100",
    ),
    "a url for a place": (
        ONE + "      input: ['s3://buc/in']\n",
        "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 's3:' is not a bucket name: write bucket/prefix, without arn: or s3://",
    ),
    "script of two lines": (
        ONE.replace("init_script: s", 'init_script: "a\\nb"'),
        "f.yaml:5:20: error: functions.aws[0].lambda.init_script: 'a\\nb' is not the path of a file",
    ),
}


def verdict(data: str | bytes) -> str:
    """The first lines of the one error, without its excerpt."""
    try:
        notes = lint(parse(data, "f.yaml"))
    except AppError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        return error.message.split("\n")[0]
    (found,) = [note.text("f.yaml") for note in notes if note.severity is Severity.ERROR]
    return found


@pytest.mark.parametrize("case", CORPUS)
def test_verdict(case: str) -> None:
    data, expected = CORPUS[case]
    assert verdict(data) == expected


BUCKETS = {
    "192.168.1.1": "it is written like an IP address",
    "xn--bucket": "names that begin with 'xn--' are reserved by AWS",
    "sthree-a": "names that begin with 'sthree-' are reserved by AWS",
    "amzn-s3-demo-a": "names that begin with 'amzn-s3-demo-' are reserved by AWS",
    "mine-s3alias": "names that end with '-s3alias' are reserved by AWS",
    "mine--ol-s3": "names that end with '--ol-s3' are reserved by AWS",
    "mine.mrap": "names that end with '.mrap' are reserved by AWS",
    "mine--x-s3": "names that end with '--x-s3' are reserved by AWS",
    "mine--table-s3": "names that end with '--table-s3' are reserved by AWS",
    "a.-b": "no '.-' inside",
    "a-.b": "no '-.' inside",
    "a..b": "no '..' inside",
    "My_Bucket": "3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'my-bucket'",
    "arn:aws:s3:::mine": "write bucket/prefix, without arn: or s3://",
}


@pytest.mark.parametrize("name", BUCKETS)
@pytest.mark.parametrize("key", ["input: ['{}/in']", "deployment: {{bucket: '{}'}}"])
def test_names_that_no_bucket_has(name: str, key: str) -> None:
    found = verdict(ONE + f"      {key.format(name)}\n")
    assert found.endswith(f": {name!r} is not a bucket name: {BUCKETS[name]}")


@pytest.mark.parametrize("name", ["a.b-c", "1.2.3.4.5", "192.168.1", "x" * 63, "0ab", "mine--s3"])
def test_names_that_buckets_may_have(name: str) -> None:
    assert parse(ONE + f"      input: ['{name}']\n").functions.aws[0].user_input


def test_the_corpus_has_its_size() -> None:
    assert len(CORPUS) >= 25
