"""Container images of functions: in ECR of this region, for their architecture. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from orchgpu.inspection.model import (
    DOCUMENT,
    Answer,
    Call,
    Finding,
    Inspected,
    Reason,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    unknown,
    wrong,
)

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<repository>[^:@]+)(?:@(?P<digest>sha256:[0-9a-f]+)|:(?P<tag>[^@]+))?"
)
#: Lambda's limit, uncompressed; a compressed image above it never fits.
_BYTES_MAX = 10 * 2**30
#: Lambda's names of architectures → those of images.
_PLATFORMS = {"x86_64": "amd64", "arm64": "arm64"}


class Images:
    """The image of each function that has one."""

    title = "container images"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            if inspected.function.function.runtime == "image":
                try:
                    findings += yield from _of(subject, inspected)
                except Refusal as refusal:
                    findings.append(_refused(inspected, refusal))
        return findings


def _refused(inspected: Inspected, refusal: Refusal) -> Finding:
    where = f"function {inspected.name}"
    if refusal.reason is Reason.ABSENT:
        return wrong(where, refusal.message, "push the image, or correct container.image")
    return unknown(refusal, where)


def _of(subject: Subject, inspected: Inspected) -> Steps[list[Finding]]:
    where = f"function {inspected.name}"
    name = inspected.function.function.container.image or ""
    found = _ECR.fullmatch(name)
    if found is None:
        message = f"{name!r} is not in ECR, from which Lambda takes images"
        return [wrong(where, message, "push it to a private repository of ECR")]
    if found["region"] != subject.place.region:
        message = f"{name} is in {found['region']}, the function in {subject.place.region}"
        return [wrong(where, message, "push it to a repository of the function's region")]
    chosen = (
        {"imageDigest": found["digest"]}
        if found["digest"]
        else {"imageTag": found["tag"] or "latest"}
    )
    arguments = {
        "registryId": found["account"],
        "repositoryName": found["repository"],
        "imageIds": [chosen],
    }
    sized = yield Call(service="ecr", operation="DescribeImages", arguments=arguments)
    size = int(sized["imageDetails"][0].get("imageSizeInBytes", 0))
    if size > _BYTES_MAX:
        message = f"{name} is larger than 10 GiB, Lambda's limit"
        return [wrong(where, message, "make it smaller")]
    answer = yield Call(service="ecr", operation="BatchGetImage", arguments=arguments)
    if not answer.get("images"):
        return [wrong(where, f"{name} does not exist", "push it, or correct container.image")]
    return [(yield from _architecture(where, name, inspected, answer, arguments))]


def _architecture(
    where: str, name: str, inspected: Inspected, answer: Answer, image: Mapping[str, object]
) -> Steps[Finding]:
    declared = inspected.function.function.architectures[0]
    wanted = _PLATFORMS.get(declared, declared)
    manifest = json.loads(answer["images"][0]["imageManifest"])
    if members := manifest.get("manifests"):
        found = [str(one.get("platform", {}).get("architecture", "?")) for one in members]
        message = f"{name} is an index of several images ({', '.join(found)}); Lambda takes one"
        remedy = f"build it with --platform linux/{wanted} --provenance=false"
        return wrong(where, message, remedy)
    built = yield from _built_for(manifest, image)
    if isinstance(built, Refusal):
        return unknown(built, where)
    if built != wanted:
        message = f"{name} is built for {built}, the function is declared as {declared}"
        return wrong(where, message, "correct architectures, or build the image for it")
    return good(where, f"{name} is one image for {declared}")


def _built_for(manifest: Answer, image: Mapping[str, object]) -> Steps[str | Refusal]:
    """The architecture in the image's configuration."""
    arguments = {
        "registryId": image["registryId"],
        "repositoryName": image["repositoryName"],
        "layerDigest": manifest["config"]["digest"],
    }
    call = Call(service="ecr", operation="GetDownloadUrlForLayer", arguments=arguments)
    place = yield from attempted(call)
    if isinstance(place, Refusal):
        return place
    url = {"Url": place["downloadUrl"]}
    document = yield from attempted(Call(service=DOCUMENT, operation="Get", arguments=url))
    return document if isinstance(document, Refusal) else str(document.get("architecture"))


CHECK = Images()
