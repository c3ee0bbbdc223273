"""`completion: object`: the one key whose change ends a job of a foreign function.

Such a function runs code that commits no result (a plain SCAR supervisor, a handler of the user),
so the orchestrator reads one exact key instead: its etag and time are noted before the envelope is
staged, and others mean that the function has written it. That is weaker than a result: a failure is
known only by Lambda's record or by the end of the lease, other outputs are unknown, and two jobs
with the same key cannot be distinguished (write `{job}` into the key).
"""

from __future__ import annotations

from corekit.values import Value

#: The placeholders of a key; the same as in `fdl.keys.jobs`.
WORDS = ("{job}", "{key}", "{name}", "{stem}")


class Target(Value):
    """One exact object."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def target_key(template: str, *, job: str, key: str, prefix: str) -> str:
    """The key of one job: `{key}` is the input's key below its prefix, `{name}` the last part,
    `{stem}` the name without its last suffix, `{job}` the job's id."""
    below = key.removeprefix(prefix + "/") if prefix else key
    name = below.rsplit("/", 1)[-1]
    stem = name.rpartition(".")[0] or name
    for word, value in zip(WORDS, (job, below, name, stem), strict=True):
        before, found, after = template.partition(word)
        if found:
            # split first: a value may look like a placeholder itself
            parts = {"job": job, "key": key, "prefix": prefix}
            return target_key(before, **parts) + value + target_key(after, **parts)
    return template
