"""`completion: object`: the one key whose change says that a job of a foreign function is over.

Such a function runs code that commits no result (a plain SCAR supervisor, anybody's handler), so
the orchestrator looks at one exact key instead: its etag is noted before the envelope is staged,
and another etag means that the function has written it. That is weaker than a result: a failure is
seen only by Lambda's record or by the end of the lease, nobody knows what else was written, and
two jobs that share a key cannot be told apart (write `{job}` into it, then none do).
"""

from __future__ import annotations

from dataclasses import dataclass

#: What may stand in a key; the same words as in `fdl.keys.jobs`.
WORDS = ("{job}", "{key}", "{name}", "{stem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One exact object."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def target_key(template: str, *, job: str, key: str, prefix: str) -> str:
    """The key of one job: `{key}` is the input's below its prefix, `{name}` its last part,
    `{stem}` that without its last suffix, `{job}` the job's id."""
    below = key.removeprefix(prefix + "/") if prefix else key
    name = below.rsplit("/", 1)[-1]
    stem = name.rpartition(".")[0] or name
    for word, value in zip(WORDS, (job, below, name, stem), strict=True):
        before, found, after = template.partition(word)
        if found:
            # split first: what is filled in may look like a word itself
            parts = {"job": job, "key": key, "prefix": prefix}
            return target_key(before, **parts) + value + target_key(after, **parts)
    return template
