"""Any text at all is read, or refused with an `AppError`."""

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError
from fdl.graph.drawing import mermaid
from fdl.graph.graph import graph_of
from fdl.lint.lint import lint
from fdl.parse import parse

_MARKS = """
oscar batch storages storage_providers minio.a image log_level debug output files run_script
execution_mode lambda-batch enable_gpu environment runtime python3.7 timeout_threshold"
functions aws lambda name gpu job memory input path count compute
{ } [ ] , &a *a !!str | > ' " --- ... ? 0x1 1e99 ~ yes é \\x << - #
"""
#: Keys and values of older shapes, and the marks of YAML.
WORDS = st.sampled_from(
    [*_MARKS.split(), "- ", ": ", "\n", "\n  ", "\n    ", "%YAML 9.9", "\t", "\u2028"]
)


_OLD = """
name image container input output log_level runtime run_script init_script execution_mode
timeout memory" lambda batch gpu api_gateway type x-a
"""
_INNER = "name path files sufix storage_provider Variables memory enable_gpu a"
#: A file of keys that are rewritten, with anything as their values.
OLD_KEYS = st.dictionaries(
    st.sampled_from(_OLD.split()),
    st.recursive(
        st.sampled_from([None, 1, "s3", "minio.a", "debug", "python3.7", "batch", "abc/d", True]),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2),
            st.dictionaries(
                st.sampled_from(_INNER.split()),
                inner,
                max_size=3,
            ),
        ),
        max_leaves=4,
    ),
    max_size=6,
)
OLD_FILES = st.fixed_dictionaries(
    {
        "functions": st.one_of(
            OLD_KEYS,
            st.lists(OLD_KEYS, max_size=2),
            st.fixed_dictionaries({"aws": st.lists(OLD_KEYS, max_size=2)}),
            st.fixed_dictionaries(
                {"oscar": st.lists(st.dictionaries(st.just("c"), OLD_KEYS), max_size=2)}
            ),
            st.dictionaries(
                st.sampled_from(["f", "aws", "oscar"]),
                st.one_of(OLD_KEYS, st.lists(OLD_KEYS, max_size=1)),
                max_size=2,
            ),
            st.fixed_dictionaries(
                {
                    "aws": st.lists(
                        st.fixed_dictionaries({"lambda": OLD_KEYS}, optional={"batch": OLD_KEYS}),
                        max_size=2,
                    )
                }
            ),
        )
    },
    optional={
        "storages": st.lists(OLD_KEYS, max_size=2),
        "storage_providers": st.dictionaries(
            st.sampled_from(["s3", "minio"]), st.one_of(OLD_KEYS, st.lists(OLD_KEYS, max_size=2))
        ),
    },
)


def look_at(data: bytes | str) -> None:
    """All that is done with a file without a cloud."""
    document = parse(data)
    lint(document)
    assert mermaid(graph_of(document))


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200), st.lists(WORDS).map("".join)))
def test_nothing_but_app_errors_is_raised(data: bytes | str) -> None:
    with suppress(AppError):
        look_at(data)


@settings(max_examples=60)
@given(OLD_FILES)
def test_older_shapes_of_any_kind_are_read_or_refused(value: object) -> None:
    with suppress(AppError):
        look_at(json.dumps(value))
