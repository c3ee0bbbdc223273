"""One job as an RO-Crate 1.1 metadata document, by the profile Process Run Crate 0.5. Pure.

    https://w3id.org/ro/crate/1.1           metadata descriptor, root data entity, flat graph
    https://w3id.org/ro/wfrun/process/0.5   CreateAction with instrument, object, result, agent

The crate is detached: input and outputs are web-based data entities with addresses in S3. No
licence is stated: that of the results is their owner's to choose, as `license` of the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote

from contract.result import Result

METADATA_NAME = "ro-crate-metadata.json"
CRATE = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
#: Terms of schema.org that the context of RO-Crate 1.1 is older than.
_MORE_TERMS = {"sha256": "https://schema.org/sha256"}

Entity: TypeAlias = "dict[str, Any]"


def ro_crate(result: Result, function: str | None) -> Entity:
    """The document of a job that is over. `function`: its name where the result has none."""
    known = result.provenance
    program = _program(known, function)
    inputs = list(_inputs(known))
    outputs = [_file(str(f["bucket"]), str(f["key"]), f) for f in result.files]
    parameters = [
        {"@id": f"#parameter-{_word(name)}", "@type": "PropertyValue", "name": name}
        | _given(value=value)
        for name, value in _mapping(known, "parameters").items()
    ]
    used = [*_host_data(known), *_resources(known)]
    tools = list(_tools(known))
    program["softwareRequirements"] = _references(tools)
    agent = {"@id": "#tenant", "@type": "Organization", "name": str(known.get("tenant", "default"))}
    places = list(_places(known))
    action = _action(result, program)
    action |= {
        "object": _references([*inputs, *parameters, *used]),
        "result": _references(outputs),
        "agent": _reference(agent),
        "location": _references([one for one in places if one["@type"] == "Place"]),
    }
    files = [*inputs, *(one for one in outputs if one["@id"] not in {i["@id"] for i in inputs})]
    root = _root(result, files, action)
    parts = [_descriptor(), root, _profile(), action, program, agent, *files, *parameters]
    return {
        "@context": [f"{CRATE}/context", _MORE_TERMS],
        "@graph": [*parts, *used, *tools, *places],
    }


def _descriptor() -> Entity:
    return {
        "@id": METADATA_NAME,
        "@type": "CreativeWork",
        "conformsTo": {"@id": CRATE},
        "about": {"@id": "./"},
    }


def _profile() -> Entity:
    name = "Process Run Crate"
    return {"@id": PROFILE, "@type": "CreativeWork", "name": name, "version": "0.5"}


def _root(result: Result, files: Sequence[Entity], action: Entity) -> Entity:
    return {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Job {result.job_id}",
        "description": f"{action['name']}: its input, its outputs, and what it used.",
        "datePublished": _time(result.ended_at_s),
        "conformsTo": {"@id": PROFILE},
        "hasPart": _references(files),
        "mentions": [_reference(action)],
    }


def _action(result: Result, program: Entity) -> Entity:
    succeeded = result.state == "SUCCEEDED"
    started_s = result.times.get("EStart")
    ended_s = result.times.get("EEnd") or result.ended_at_s
    status = "CompletedActionStatus" if succeeded else "FailedActionStatus"
    return {
        "@id": f"#{_word(result.job_id)}",
        "@type": "CreateAction",
        "name": f"Run of {program['name']}, attempt {result.attempt}",
        "instrument": _reference(program),
        **({} if started_s is None else {"startTime": _time(started_s)}),
        "endTime": _time(ended_s),
        "actionStatus": f"http://schema.org/{status}",
        **({} if succeeded else {"error": f"{result.reason}: {result.detail}"}),
    }


def _program(known: Mapping[str, Any], function: str | None) -> Entity:
    declared = _mapping(known, "function")
    name = str(declared.get("name") or function or "unknown function")
    return {
        "@id": f"#function-{_word(name)}",
        "@type": "SoftwareApplication",
        "name": name,
        **_given(
            version=declared.get("revision"),
            sha256=declared.get("package_sha256"),
            image=declared.get("image"),
        ),
    }


def _inputs(known: Mapping[str, Any]) -> Iterator[Entity]:
    source = _mapping(known, "input")
    if "bucket" in source and "key" in source:
        file = _file(str(source["bucket"]), str(source["key"]), source)
        version = source.get("version") or source.get("etag")
        yield file | _given(version=version)


def _file(bucket: str, key: str, facts: Mapping[str, Any]) -> Entity:
    return {
        "@id": f"s3://{bucket}/{quote(key)}",
        "@type": "File",
        "name": key.rpartition("/")[2] or key,
        **_given(contentSize=facts.get("size"), sha256=facts.get("sha256")),
    }


def _host_data(known: Mapping[str, Any]) -> Iterator[Entity]:
    """Data sets of the hosts, which have no address."""
    for name, digest in _mapping(known, "data").items():
        entity = {"@id": f"#data-{_word(name)}", "@type": "CreativeWork", "name": name}
        yield entity | _given(sha256=digest)


def _resources(known: Mapping[str, Any]) -> Iterator[Entity]:
    """Models and other contents that the function brought, by content."""
    seen: dict[str, Entity] = {}
    for one in _entries(known, "resources"):
        digest = str(one.get("sha256", ""))
        entity = {
            "@id": f"#content-{_word(digest)}",
            "@type": "CreativeWork",
            "name": str(one.get("source") or f"{one.get('type', 'content')} {digest[:12]}"),
            **_given(sha256=digest, additionalType=one.get("type")),
        }
        seen.setdefault(entity["@id"], entity)
    yield from seen.values()


def _tools(known: Mapping[str, Any]) -> Iterator[Entity]:
    """Operations, programs of the hosts, and our own packages."""
    for number, one in enumerate(_entries(known, "operations"), 1):
        entity = {
            "@id": f"#operation-{number}",
            "@type": "SoftwareApplication",
            "name": str(one.get("name", "")),
        }
        yield entity | _given(version=one.get("implementation"))
    for name, digest in _mapping(known, "programs").items():
        entity = {"@id": f"#program-{_word(name)}", "@type": "SoftwareApplication", "name": name}
        yield entity | _given(sha256=digest)
    for name, version in _mapping(known, "versions").items():
        yield {
            "@id": f"#software-{_word(name)}",
            "@type": "SoftwareApplication",
            "name": name,
            "version": str(version),
        }


def _places(known: Mapping[str, Any]) -> Iterator[Entity]:
    """The devices of the lease, each with its host."""
    for number, device in enumerate(_entries(known, "devices"), 1):
        values = [
            {"@id": f"#device-{number}-{_word(name)}", "@type": "PropertyValue"}
            | {"name": name, **_given(value=value)}
            for name, value in device.items()
        ]
        name = f"{device.get('model', 'device')} of {device.get('host', 'a host')}"
        yield {
            "@id": f"#device-{number}",
            "@type": "Place",
            "name": name,
            "additionalProperty": _references(values),
        }
        yield from values


def _mapping(known: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object of the provenance; empty where another version has something else."""
    value = known.get(key)
    return value if isinstance(value, Mapping) else {}


def _entries(known: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    value = known.get(key)
    yield from (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else ()


def _given(**values: object) -> Entity:
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _reference(entity: Entity) -> Entity:
    return {"@id": entity["@id"]}


def _references(entities: Sequence[Entity]) -> list[Entity]:
    return [_reference(entity) for entity in entities]


def _word(text: str) -> str:
    """A part of an @id."""
    return quote(text, safe="")


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
