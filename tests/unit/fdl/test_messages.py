"""Every kind of wrong file with the one message that people see; none is a crash.

They are read, or refused with the place, the reason and what to write instead.
"""
# ruff: noqa: E501  (one line per case, as people see it)

from collections.abc import Mapping

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.text.compose import BYTES_MAX

NAMED = "functions:\n  aws:\n  - lambda:\n      name: a\n"
SCRIPT = NAMED + "      init_script: s\n"
BOTH = SCRIPT + "      input: [buc/in]\n      output: [buc/out]\n"
GPU = SCRIPT + "      input: [{path: inn}]\n      output: [{path: out}]\n    gpu: {%s}\n"
SERVICE = "functions:\n  oscar:\n  - near:\n      name: f\n      script: s\n"
ENVIRONMENT = "functions: {oscar: [{c: {name: f, script: s, environment: {%s}}}]}"
FLAT = "functions:\n  f:\n"
ONE_LINE = "functions:\n  aws:\n  - lambda: {name: f, %s}\n"


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nfunctions: {aws: [*c]}\n"
TOO_LARGE = "#" * (BYTES_MAX + 1)
UTF_16 = "functions: {}".encode("utf-16")
BYTE_ORDER_MARK = f"\ufeff{SCRIPT}      memmory: 1\n"
THIRTY_LEVELS = "a: " + "{a: " * 30 + "1" + "}" * 30 + "\n"
PLACES = ", ".join(f"in-{number}" for number in range(100))
MANY_PLACES = "functions:\n  aws:\n" + "".join(
    f"  - lambda: {{name: f{number}, init_script: s, input: [{PLACES}], output: [out]}}\n"
    for number in range(6)
)
MANY_FUNCTIONS = "functions:\n" + "".join(f"  f{i}: {{image: a/b}}\n" for i in range(3000))
MEMORY_OF_400_DIGITS = f"    gpu: {{memory: {'9' * 400}}}\n"
MEMORY_OF_4000_DIGITS = f"{SCRIPT}      memory: {'9' * 4000}\n"
NAME_OF_65 = NAMED.replace("name: a", "name: " + "f" * 65)
LETTER_OF_ANOTHER_SCRIPT = NAMED.replace("name: a", "name: \u0430")

#: A file with a gap → what stands in the gap → the one error.
CASES: Mapping[str, Mapping[str | bytes, str]] = {
    SCRIPT + "      input: [%s]\n      output: [buc/out]\n": {
        '"buc/a\\ud800b"': "f.yaml:6:15: error: U+D800 is half a character: leave the escape out",
        '"buc/a\\u200bb"': "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 'buc/a\\u200bb' has the invisible character U+200B; leave it out",
        '"buc/a\\u2028b"': "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 'buc/a\\u2028b' has the invisible character U+2028; leave it out",
        '"buc/a\\U000e0041b"': "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 'buc/a\\U000e0041b' has the invisible character U+E0041; leave it out",
        "{path: buc/in, suffix: [.gz, .tar.gz]}": "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: buc/in*.gz and buc/in*.tar.gz take the same objects: S3 takes one rule for each; keep the wider",
    },
    GPU: {
        "}\n    gpu: {": "f.yaml:9:5: error: 'gpu' is written twice, first on line 8; keep one",
        "count: -1": "f.yaml:8:18: error: functions.aws[0].gpu.count: -1 must lie in 1…64",
        "count: .nan": "f.yaml:8:18: error: functions.aws[0].gpu.count: expected an integer, got '.nan'",
        "count: 99999999999999999999": "f.yaml:8:18: error: functions.aws[0].gpu.count: 99999999999999999999 must lie in 1…64",
        "count: 1.5": "f.yaml:8:18: error: functions.aws[0].gpu.count: expected an integer, got '1.5'",
        "memory: -4GiB": "f.yaml:8:19: error: functions.aws[0].gpu.memory: '-4GiB' is not a memory size; write MiB, or a unit as in 4GiB",
        "memory: 4096TiB": "f.yaml:8:19: error: functions.aws[0].gpu.memory: 4294967296 MiB is more than any device has",
        "compute: 101%": "f.yaml:8:20: error: functions.aws[0].gpu.compute: '101%' is not a percentage in 0…100",
        "max_wait: 1e999": "f.yaml:8:21: error: functions.aws[0].gpu.max_wait: '1e999' is not a duration; write seconds, or a unit as in 10m",
    },
    BOTH + "%s": {
        "# \u202e\n": "f.yaml:8:3: error: the character U+202E turns the direction of the text after it; leave it out",
        MEMORY_OF_400_DIGITS: "f.yaml:8:19: error: functions.aws[0].gpu.memory: '9999999999999999999999999999999999999...' is not a memory size; write MiB, or a unit as in 4GiB",
        "      architectures: []\n": "f.yaml:8:22: error: functions.aws[0].lambda.architectures: needs 1 item at least; or leave it out",
        "      vpc: {SubnetIds: [a]}\n      file_system: [{Arn: 'arn:x', LocalMountPath: /mnt/../etc}]\n": "f.yaml:9:52: error: functions.aws[0].lambda.file_system[0].LocalMountPath: '/mnt/../etc' is not a folder /mnt/NAME",
        "      layers: [arn:a, arn:b, arn:c, arn:d, arn:e, arn:f]\n": "f.yaml:8:15: error: functions.aws[0].lambda.layers: more than 5 items",
        "    job: {queue: {name: q, dead_letter: q}}\n": "f.yaml:8:11: error: functions.aws[0].job.queue: 'q' is named for two of its queues; each needs a name of its own",
    },
    SCRIPT + "%s": {
        "      init_script: t\n": "f.yaml:6:7: error: 'init_script' is written twice, first on line 5; keep one",
        "      <<: {memory: 512}\n": "f.yaml:6:7: error: << merges mappings: write the keys out",
        "      memory: [512]\n": "f.yaml:6:15: error: functions.aws[0].lambda.memory: expected an integer, got a list",
        "      output: out\n": "f.yaml:6:15: error: functions.aws[0].lambda.output: expected a list, got 'out'",
        "      description: {a: b}\n": "f.yaml:6:20: error: functions.aws[0].lambda.description: expected a text of up to 256 characters, got a mapping; a text that begins with [ or { needs quotes",
        "      input: [{path: buc/in}]\n      output: [{path: buc/in}]\n": "f.yaml:7:7: error: functions.aws[0].lambda.output: what it writes triggers a again; change a prefix",
        "      input: [{path: buc}]\n      output: [{path: buc/out}]\n": "f.yaml:7:7: error: functions.aws[0].lambda.output: what it writes triggers a again; change a prefix",
        "  - lambda: {name: a, init_script: s}\n": "f.yaml:6:14: error: functions.aws[1].lambda.name: 'a' is declared twice",
        "      input: [{path: buc/../other}]\n": "f.yaml:6:22: error: functions.aws[0].lambda.input[0].path: the prefix '../other' has an empty or dotted part",
        "      input: [{path: Bucket/in}]\n": "f.yaml:6:22: error: functions.aws[0].lambda.input[0].path: 'Bucket' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'bucket'",
        "      memory: 0400\n": "f.yaml:6:15: error: functions.aws[0].lambda.memory: '0400' has a leading zero, and YAML 1.1 reads it as octal: write 400 or 256",
        "      timeout: 0890\n": "f.yaml:6:16: error: functions.aws[0].lambda.timeout: '0890' has a leading zero: write 890",
        "    gpu: {priority: -010}\n": "f.yaml:6:21: error: functions.aws[0].gpu.priority: '-010' has a leading zero, and YAML 1.1 reads it as octal: write -10 or -8",
        "    gpu: {memory: 0400}\n": "f.yaml:6:19: error: functions.aws[0].gpu.memory: '0400' has a leading zero, and YAML 1.1 reads it as octal: write 400 or 256",
        "    gpu: {memory: ٤٠٠}\n": "f.yaml:6:19: error: functions.aws[0].gpu.memory: '٤٠٠' is not a memory size; write MiB, or a unit as in 4GiB",
        "      memory: ٤٠٠\n": "f.yaml:6:15: error: functions.aws[0].lambda.memory: expected an integer, got '٤٠٠'",
        '      input: ["buc/\\u202egnp.exe"]\n': "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 'buc/\\u202egnp.exe' has the invisible character U+202E; leave it out",
        '      input: [{path: buc, suffix: "\\x1b[2J"}]\n': "f.yaml:6:35: error: functions.aws[0].lambda.input[0].suffix: '\\x1b[2J' has the invisible character U+001B; leave it out",
        "    gpu: {compute: {limit: 0}}\n": "f.yaml:6:28: error: functions.aws[0].gpu.compute.limit: '0' is not a percentage in 1…100",
        "      input: ['s3://buc/in']\n": "f.yaml:6:15: error: functions.aws[0].lambda.input[0]: 's3:' is not a bucket name: write bucket/prefix, without arn: or s3://",
        "      input: [buc/in, buc/in/deep]\n      output: [buc/out]\n    job: none\n": "f.yaml:6:23: error: functions.aws[0].lambda.input[1]: buc/in* and buc/in/deep* take the same objects: S3 takes one rule for each; keep the wider",
    },
    NAMED + "%s": {
        '      init_script: "a\\nb"\n': "f.yaml:5:20: error: functions.aws[0].lambda.init_script: 'a\\nb' is not the path of a file",
        "      memmory: 4096\n": "f.yaml:5:7: error: functions.aws[0].lambda: unknown key 'memmory'; did you mean 'memory'?",
        "    gpus: 1\n": "f.yaml:5:5: error: functions.aws[0]: unknown key 'gpus'; did you mean 'gpu'?",
        "    job: {max_wait: 5}\n": "f.yaml:5:11: error: functions.aws[0].job: unknown key 'max_wait'; it belongs in 'gpu'",
        "      gpu: {}\n": "f.yaml:5:7: error: functions.aws[0].lambda: unknown key 'gpu'; it belongs next to 'lambda' or in 'workflows.NAME'",
        "    gpu: {lease: 960}\n": "f.yaml:5:11: error: functions.aws[0].gpu: unknown key 'lease'; did you mean 'lease_length'?",
        "      memory: 999999\n": "f.yaml:5:15: error: functions.aws[0].lambda.memory: 999999: Lambda has 10240 MB at most; write `execution: host`",
        "      memory: '512'\n": "f.yaml:5:15: error: functions.aws[0].lambda.memory: expected an integer; remove the quotes",
        "      memory: 5e2\n": "f.yaml:5:15: error: functions.aws[0].lambda.memory: expected an integer, got '5e2'",
        "      timeout: 901\n": "f.yaml:5:16: error: functions.aws[0].lambda.timeout: 901: Lambda has 900 s at most; write `execution: host`",
        "      runtime: ruby3.3\n": "f.yaml:5:16: error: functions.aws[0].lambda.runtime: 'ruby3.3' is not python3.x or image",
        "      input: {path: abc}\n": "f.yaml:5:14: error: functions.aws[0].lambda.input: expected a list, got a mapping",
        "      input: [{path: abc, storage_provider: gcs}]\n": "f.yaml:5:45: error: functions.aws[0].lambda.input[0].storage_provider: 'gcs' is not a storage provider: s3, minio or onedata, or one with `.id`; copy objects that lie elsewhere to S3 and write s3",
        "      environment: {Variables: {1A: x}}\n": "f.yaml:5:33: error: functions.aws[0].lambda.environment.Variables: '1A' is not the name of a variable (letters, digits and _, not starting with a digit)",
        "    iam: {role: me}\n": "f.yaml:5:17: error: functions.aws[0].iam.role: 'me' is not the ARN of a role (arn:aws:iam::<12 digits>:role/<name>)",
        "    gpu: {count: 0}\n": "f.yaml:5:18: error: functions.aws[0].gpu.count: 0 must lie in 1…64",
        "    gpu: {memory: 4 GiGa}\n": "f.yaml:5:19: error: functions.aws[0].gpu.memory: '4 GiGa' is not a memory size; write MiB, or a unit as in 4GiB",
        "    gpu: {kinds: [cdua]}\n": "f.yaml:5:19: error: functions.aws[0].gpu.kinds[0]: 'cdua' is not one of cuda, opencl, cpu, vpu; did you mean 'cuda'?",
        "    gpu: {compute: {guarantee: 80, limit: 50}}\n": "f.yaml:5:10: error: functions.aws[0].gpu: the guarantee of compute must not exceed the limit of compute",
        "    gpu: {compute: 5, compute_guarantee: 5}\n": "f.yaml:5:10: error: functions.aws[0].gpu: compute.guarantee and compute_guarantee are both given; keep one",
        "    gpu: {compute: 12.25}\n": "f.yaml:5:20: error: functions.aws[0].gpu.compute: '12.25' is not a percentage in 0…100, with at most one decimal",
        "    gpu: {requires: {onnxruntime: new}}\n": "f.yaml:5:35: error: functions.aws[0].gpu.requires.onnxruntime: 'new' is not a version or bounds, as 1.12 or '>=1.10,<1.13'",
        "    gpu: {data: [proteins, 'a b']}\n": "f.yaml:5:28: error: functions.aws[0].gpu.data[1]: 'a b' is not a name such as proteins, or proteins@sha256: with 64 hex digits",
        "    gpu: {requires: {'onnx runtime': 1.2}}\n": "f.yaml:5:22: error: functions.aws[0].gpu.requires: 'onnx runtime' is not the name of a library, `driver` or `runtime`",
        "    gpu: {max_wait: soon}\n": "f.yaml:5:21: error: functions.aws[0].gpu.max_wait: 'soon' is not a duration; write seconds, or a unit as in 10m",
        "    gpu: {middleware: R CUDA}\n": "f.yaml:5:23: error: functions.aws[0].gpu.middleware: 'R CUDA' is not the name of a middleware",
        "      preheat: maybe\n": "f.yaml:5:16: error: functions.aws[0].lambda.preheat: expected true or false, got 'maybe'",
        "    job: {queue: a.fifo}\n": "f.yaml:5:18: error: functions.aws[0].job.queue: 'a.fifo' is not the name of a standard SQS queue (letters, digits, - and _, up to 80)",
    },
    SERVICE + "%s": {
        "      input: [{path: A_B}]\n": "f.yaml:6:22: error: functions.oscar[0].near.input[0].path: 'A_B' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'a-b'",
        "      environment: {TEST1: 45}\n": "f.yaml:6:21: error: functions.oscar[0].near.environment: unknown key 'TEST1'; write `environment: {Variables: {TEST1: …}}`",
        "      environment: {Variables: {KEY: [my_key]}}\n": "f.yaml:6:38: error: functions.oscar[0].near.environment.Variables.KEY: expected a string, got a list; a text that begins with [ or { needs quotes",
        "      expose: {api_port: 80}\n": "f.yaml:6:7: error: functions.oscar[0].near.expose: a service that answers HTTP requests is not a function that objects start: leave it out and write `script:` with the program that handles one file, and `input:` with its bucket",
        "      workspace: {size: 1Gi}\n": "f.yaml:6:7: error: functions.oscar[0].near.workspace: no disk of a cluster is mounted here: leave it out and let the script use the files of `input`; for a shared disk write `file_system:` (EFS) in a `lambda` block",
        "      timeout: 3\n": "f.yaml:6:7: error: functions.oscar[0].near: unknown key 'timeout'; write the function under `functions.aws` for it",
    },
    ENVIRONMENT: {
        "variables: {A: b}, Variables: {}": "f.yaml:1:79: error: functions.oscar[0].c.environment.Variables: is written twice; keep one spelling",
        "secrets: {A: b}": "f.yaml:1:60: error: functions.oscar[0].c.environment.secrets: values in clear, which OSCAR's cluster keeps: keep each in a store instead, and write `secrets: {NAME: ssm:/NAME}` next to `lambda` in `functions.aws`",
    },
    FLAT + "%s": {
        "    image: a/b\n    memmory: 1\n": "f.yaml:4:5: error: functions.f: unknown key 'memmory'; did you mean 'memory'?",
        "    image: a/b\n    time: long\n": "f.yaml:4:11: error: functions.f.time: expected an integer, got 'long'",
        "    init_script: s\n    s3: {input_bucket: A_B, output_bucket: abc}\n": "f.yaml:4:24: error: functions.f.s3.input_bucket: 'A_B' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'a-b'",
        "    init_script: s\n    s3: {input_buckett: abc}\n": "f.yaml:4:10: error: functions.f.s3: unknown key 'input_buckett'; did you mean 'input_bucket'?",
        "    init_script: s\n    s3: {input_bucket: [abc]}\n": "f.yaml:4:24: error: functions.f.s3.input_bucket: expected the name of a bucket or folder",
        "    init_script: s\n    input: [abc]\n    s3: {input_bucket: abc}\n": "f.yaml:5:9: error: functions.f.s3: input_bucket and `input` are both given; keep `input`",
        "    image: a/b\n    container: {image: c/d}\n": "f.yaml:3:12: error: functions.f.image: container.image is given too; keep that one",
    },
    ONE_LINE: {
        "environment: {TEST1: 45}": "f.yaml:3:37: error: functions.aws[0].lambda.environment: unknown key 'TEST1'; write `environment: {Variables: {TEST1: …}}`, or in `container` for the script's own variables",
        "container: {ecr_image: x}": "f.yaml:3:35: error: functions.aws[0].lambda.container.ecr_image: write `image: <the image in ECR>` and `create_image: false` here, and `runtime: image` next to `container`",
        "ecr_image: x": "f.yaml:3:23: error: functions.aws[0].lambda: unknown key 'ecr_image'; in 'lambda.container': write `image: <the image in ECR>` and `create_image: false` here, and `runtime: image` next to `container`",
        "federation: {}": "f.yaml:3:23: error: functions.aws[0].lambda: unknown key 'federation'; it is OSCAR's: leave it out, jobs are not delegated to other clusters; they wait here for a device",
        "propagate_token: true": "f.yaml:3:23: error: functions.aws[0].lambda: unknown key 'propagate_token'; it is OSCAR's: leave it out, a job carries no token; the function has its own role",
        "init_script: s}\n    storage_providers: {": "f.yaml:4:5: error: functions.aws[0]: unknown key 'storage_providers'; leave it out: all storage is in S3, reached by the function's role",
    },
    "%s": {
        BOMB: "f.yaml:1:4: error: the anchor &a is not allowed here: quote the value",
        "functions: !!python/object/apply:os.system [id]\n": "f.yaml:1:12: error: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed here: leave it out, or quote the value",
        "functions: !include other.yaml\n": "f.yaml:1:12: error: the tag !include is not allowed here: leave it out, or quote the value",
        "functions: 7\n": "f.yaml:1:12: error: functions: expected a mapping, got '7'",
        "functions: {aws: [{lambda: {name: }}]}\n": "f.yaml:1:34: error: functions.aws[0].lambda.name: expected a function name (letters, digits, - and _, up to 64), got nothing",
        "functions: {gcp: [{lambda: {name: a}}]}\n": "f.yaml:1:13: error: functions: unknown key 'gcp'; a function is an element of the list `functions.aws`",
        TOO_LARGE: "f.yaml: error: too large; an FDL file may have at most 262144 bytes",
        THIRTY_LEVELS: "f.yaml:1:96: error: nested deeper than 24 levels",
        "functions:\n\taws: []\n": "f.yaml:2:1: error: not valid YAML: a tab: YAML indents with spaces; write spaces instead",
        "functions: a\x00b\n": "f.yaml:1:13: error: not valid YAML: the character U+0000 is not allowed; leave it out",
        'functions: "\\a"\n': "f.yaml:1:12: error: functions: expected a mapping, got '\\x07'",
        BYTE_ORDER_MARK: "f.yaml:6:7: error: functions.aws[0].lambda: unknown key 'memmory'; did you mean 'memory'?",
        b"functions: \xff\n": "f.yaml:1:12: error: byte 0xff is not UTF-8; save the file as UTF-8",
        UTF_16: "f.yaml:1:1: error: the file is in UTF-16; save it as UTF-8",
        "functions: {}\n---\nfunctions: {}\n": "f.yaml:2:1: error: a second document begins here; one file holds one",
        "": "f.yaml:1:1: error: the file is empty; it needs 'functions:'",
        "functions:\n  gpu: {memory: 4096, compute: 25}\n  aws:\n  - lambda:\n      name: a\n": "f.yaml:2:3: error: functions: unknown key 'gpu'; it belongs in an element of the list `functions.aws`, next to 'lambda'",
        "functions: {aws: [{name: f}]}": "f.yaml:1:20: error: functions.aws[0]: unknown key 'name'; it belongs in 'lambda' or in 'job.queue'",
        "function: {}\n": "f.yaml:1:1: error: unknown key 'function'; did you mean 'functions'?",
        "scar: {}\n": "f.yaml:1:1: error: missing key 'functions'",
        "functions: {aws: [{lambda: {memory: 512}}]}": "f.yaml:1:28: error: functions.aws[0].lambda: missing key 'name'",
        "functions: {aws: [{gpu: {}}]}": "f.yaml:1:19: error: functions.aws[0]: missing key 'lambda'",
        "functions: {aws: [{lambda: {name: a b}}]}": "f.yaml:1:35: error: functions.aws[0].lambda.name: 'a b' is not a function name (letters, digits, - and _, up to 64)",
        "? [a]\n: 1\n": "f.yaml:1:3: error: a key must be a plain word",
        'a: "\\UFFFFFFFF"\n': "f.yaml:1:7: error: not valid YAML: an escape or a directive near here has a number that is too large",
        "~\n": "f.yaml:1:1: error: missing key 'functions'",
        "hello\n": "f.yaml:1:1: error: expected a mapping, got 'hello'",
        "a: " + "[" * 100_000: "f.yaml:1:27: error: nested deeper than 24 levels",
        "- " * 100_000: "f.yaml:1:49: error: nested deeper than 24 levels",
        MANY_PLACES: "f.yaml:2:3: error: functions: 606 paths and filters, more than the 500 of one file; write several files",
        MANY_FUNCTIONS: "f.yaml:2:3: error: functions.aws: more than 100 items",
        '"\\udfff": 1\nfunctions:\n  aws:\n  - lambda:\n      name: a\n      init_script: s\n      input: [buc/in]\n      output: [buc/out]\n': "f.yaml:1:1: error: U+DFFF is half a character: leave the escape out",
        LETTER_OF_ANOTHER_SCRIPT: "f.yaml:4:13: error: functions.aws[0].lambda.name: 'а' is not a function name (letters, digits, - and _, up to 64)",
        NAME_OF_65: "f.yaml:4:13: error: functions.aws[0].lambda.name: 'fffffffffffffffffffffffffffffffffffff...' is not a function name (letters, digits, - and _, up to 64)",
        MEMORY_OF_4000_DIGITS: "f.yaml:6:15: error: functions.aws[0].lambda.memory: expected an integer, got '9999999999999999999999999999999999999...'",
        "functions:\n- name: f\n  memmory: 1\n": "f.yaml:3:3: error: functions[0]: unknown key 'memmory'; did you mean 'memory'?",
        "functions:\n- name: f\n  input: [{path: A_B}]\n": "f.yaml:3:18: error: functions[0].input[0].path: 'A_B' is not a bucket name: 3 to 63 characters of a-z, 0-9, - and ., starting and ending with a letter or digit; write 'a-b'",
        "provider: {name: faas}\nfunctions:\n  f: {lang: dockerfile, handler: ./f, image: a/b}\n": "f.yaml:1:11: error: provider: this is a file of another tool (OpenFaaS, Serverless Framework); write `functions: {aws: [{lambda: {name: NAME, init_script: FILE, input: [BUCKET/PREFIX]}}]}` with each of its functions",
        "clusterz: {}\nfunctions:\n  aws:\n  - lambda: {name: f, init_script: s}\n": "f.yaml:1:1: error: unknown key 'clusterz'",
    },
}


def verdict(data: str | bytes) -> str:
    """The first line of the one error, without its excerpt."""
    try:
        notes = lint(parse(data, "f.yaml"))
    except AppError as error:
        several = "faults" in error.details or error.code is not ErrorCode.INVALID
        return error.message if several else error.message.split("\n")[0]
    (found,) = [note.text("f.yaml") for note in notes if note.severity is Severity.ERROR]
    return found


@pytest.mark.parametrize("file", CASES)
def test_each_mistake_has_one_message(file: str) -> None:
    def whole(part: str | bytes) -> str | bytes:
        return file.replace("%s", part) if isinstance(part, str) else part

    expected = CASES[file]
    assert {part: verdict(whole(part)) for part in expected} == expected


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
    found = verdict(SCRIPT + f"      {key.format(name)}\n")
    assert found.endswith(f": {name!r} is not a bucket name: {BUCKETS[name]}")


@pytest.mark.parametrize("name", ["a.b-c", "1.2.3.4.5", "192.168.1", "x" * 63, "0ab", "mine--s3"])
def test_names_that_buckets_may_have(name: str) -> None:
    assert parse(SCRIPT + f"      input: ['{name}']\n").functions.aws[0].user_input


def said(text: str) -> list[str]:
    """Errors and warnings, without their places."""
    notes = lint(parse(text, "f"))
    return [f"{n.path}: {n.message}" for n in notes if n.severity is not Severity.NOTE]


def test_words_that_need_joiners_have_them() -> None:
    """Persian and several scripts of India write with the joiner and the non-joiner."""
    assert said(BOTH.replace("[buc/in]", '["buc/\u0645\u06cc\u200c\u062e"]')) == []


def test_values_of_variables_may_have_any_characters() -> None:
    assert said(BOTH + '      container: {environment: {Variables: {A: "\\x1b\\u200b"}}}\n') == []
