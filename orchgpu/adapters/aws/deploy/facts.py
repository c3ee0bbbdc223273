"""The facts of the cloud on which a desired state depends: kept roles, keys of buckets, digests."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from contract.secrets.reference import SecretReference
from contract.secrets.stores import description_of, key_of
from corekit.errors import AppError, ErrorCode
from fdl.model import Function
from fdl.plan.desired import buckets_of, further_roles
from fdl.plan.facts import DataFacts, Facts
from fdl.plan.functions import is_image, owners_of
from fdl.plan.resources import DeployTarget
from fdl.plan.roles import boundary_of
from gpu_scheduler.data_manifest import digest_of, manifest_of, s3_files, s3_version
from gpu_scheduler.data_sets import S3_PATTERN
from orchgpu.adapters.aws.api import Client, answer_or_none
from orchgpu.adapters.aws.deploy.storage import Buckets

#: REGISTRY.dkr.ecr.REGION.amazonaws.com/NAME[:TAG]; with a digest nothing is to be resolved.
_TAGGED = re.compile(
    r"(?P<registry>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?"
    r"/(?P<name>[^:@]+)(:(?P<tag>[^:@]+))?"
)
#: The ARN of the boundary of made roles, where a definition names none.
BOUNDARY_VARIABLE = "ORCHGPU_PERMISSIONS_BOUNDARY"
_KEY_ARN = re.compile(r"arn:[^:]+:kms:[^:]+:\d{12}:key/.+")


def data_buckets(functions: Sequence[Function]) -> Iterator[str]:
    """The buckets of declared data."""
    for declared in (one for function in functions for one in function.data.values()):
        if (match := S3_PATTERN.fullmatch(declared.source)) is not None:
            yield match[1]


class FactsReader:
    """Reads facts on AWS; other clouds have none."""

    def __init__(
        self,
        client: Callable[[str], Client],
        place: DeployTarget,
        buckets: Buckets,
    ) -> None:
        self._buckets = buckets
        self._client = client
        self._place = place

    def facts(self, functions: Sequence[Function]) -> Facts:
        data = self.data(functions)
        if self._place.local:
            return Facts(data=data)
        made = [one for one in functions if one.iam.create]
        place = self._place
        limited = [one for one in functions if one.iam.create or further_roles(one, place)]
        images = [one.function.container.image or "" for one in functions if is_image(one)]
        named = Facts(boundary=os.environ.get(BOUNDARY_VARIABLE, ""))
        for arn in dict.fromkeys(boundary_of(one, self._place, named) for one in limited):
            self._check_boundary(arn)
        return Facts(
            boundary=named.boundary,
            bucket_keys=self._bucket_keys(limited),
            secret_keys=self._secret_keys(made),
            images=self._digests(images),
            data=data,
        )

    def data(self, functions: Sequence[Function]) -> dict[str, DataFacts]:
        """The digest and size of each declared source that does not state them. Raises AppError:
        NOT_FOUND, DENIED, UNAVAILABLE."""
        declared = {one.source: None for function in functions for one in function.data.values()}
        of_s3 = {one: self._data_facts(one) for one in declared if one.startswith("s3://")}
        listed = [one for one in declared if one.startswith(("hf://", "oci://"))]
        return of_s3 | {one: _web_facts(one) for one in listed}

    def _data_facts(self, source: str) -> DataFacts:
        match = S3_PATTERN.fullmatch(source)
        assert match is not None, "the definition was checked"
        s3, (bucket, prefix, version) = self._client("s3"), match.groups()
        if version is not None:
            head = s3.head_object(Bucket=bucket, Key=prefix, VersionId=version)
            files = s3_version(prefix, version, head["ContentLength"])
        else:
            pages = s3.pages("list_objects_v2", Bucket=bucket, Prefix=prefix)
            files = dict(s3_files(pages, prefix))
        manifest = manifest_of(source, files.values())
        return DataFacts(digest=digest_of(manifest), bytes=manifest.bytes or 0)

    def _check_boundary(self, arn: str) -> None:
        name = arn.rpartition("/")[2]
        if answer_or_none(self._client("iam").get_policy, PolicyArn=arn) is None:
            make = (
                f"orchgpu iam boundary FILE > boundary.json && aws iam create-policy --policy-name"
                f" {name} --policy-document file://boundary.json"
            )
            raise AppError(
                ErrorCode.NOT_FOUND,
                f"the permissions boundary {arn} does not exist, and deploy makes no role without"
                f" one: an administrator makes it once (`{make}`); or name another policy with"
                f" `iam: {{permissions_boundary: ARN}}` or {BOUNDARY_VARIABLE}",
            )

    def _bucket_keys(self, functions: Sequence[Function]) -> dict[str, str]:
        """The customer's KMS keys by which buckets encrypt; foreign buckets do not show theirs."""
        names = [
            name
            for function in functions
            for name in (*buckets_of(function), *_runs_bucket(function))
            if name not in owners_of(function)
        ]
        keys = {name: self._bucket_key(name) for name in dict.fromkeys(names)}
        return {name: key for name, key in keys.items() if key}

    def _bucket_key(self, bucket: str) -> str:
        """Without a bucket, or its setting, there is no key."""
        try:
            answer = answer_or_none(self._client("s3").get_bucket_encryption, Bucket=bucket)
        except AppError:
            self._buckets.observe(bucket)  # names the reason where the bucket is not ours
            raise
        if answer is None:
            return ""
        for rule in answer["ServerSideEncryptionConfiguration"].get("Rules", ()):
            key = rule.get("ApplyServerSideEncryptionByDefault", {}).get("KMSMasterKeyID")
            if key:
                return self._key_arn(str(key))
        return ""

    def _secret_keys(self, functions: Sequence[Function]) -> dict[str, str]:
        references = [one for function in functions for one in function.references]
        keys = secret_keys(references, self._place, self._client)
        return {reference: self._key_arn(key) for reference, key in keys.items()}

    def _key_arn(self, key: str) -> str:
        """The ARN of a key that may be named by its id or an alias, which a policy cannot name."""
        if _KEY_ARN.fullmatch(key):
            return key
        return str(self._client("kms").describe_key(KeyId=key)["KeyMetadata"]["Arn"])

    def _digests(self, images: Iterable[str]) -> dict[str, str]:
        resolved = {image: self._resolved(image) for image in dict.fromkeys(images)}
        return {image: pinned for image, pinned in resolved.items() if pinned}

    def _resolved(self, image: str) -> str:
        match = _TAGGED.fullmatch(image)
        if match is None:
            return ""
        if match["region"] != self._place.region:
            raise AppError(
                ErrorCode.INVALID,
                f"image {image} is in {match['region']}, the function in {self._place.region}:"
                " Lambda takes images of its own region only",
            )
        tag = match["tag"] or "latest"
        answer = answer_or_none(
            self._client("ecr").describe_images,
            registryId=match["registry"],
            repositoryName=match["name"],
            imageIds=[{"imageTag": tag}],
        )
        details = answer["imageDetails"] if answer is not None else ()
        if not details:
            raise AppError(ErrorCode.NOT_FOUND, f"ECR has no image {image}: push it first")
        return f"{image.removesuffix(':' + tag)}@{details[0]['imageDigest']}"


def _web_facts(source: str) -> DataFacts:
    """The facts of a source of the web, listed as hosts list it."""
    from remote_gpu.host.data.sources import present_of  # loads aiohttp

    with ThreadPoolExecutor(max_workers=1) as thread:  # a notebook has a loop in this one
        pinned, manifest = thread.submit(asyncio.run, present_of(source)).result()
    return DataFacts(digest=digest_of(manifest), bytes=manifest.bytes or 0, source=pinned)


def secret_keys(
    references: Iterable[SecretReference], place: DeployTarget, client: Callable[[str], Client]
) -> dict[str, str]:
    """Reference → the customer's KMS key, as its entry names it: by ARN, id or alias.

    Entries that do not exist yet are left out, with those of other regions and accounts, which do
    not show their keys.
    """
    keys = {}
    for reference in dict.fromkeys(references):
        parts = reference.entry.split(":")
        elsewhere = parts[0] == "arn" and parts[3:5] != [place.region, place.account]
        if elsewhere or not reference.stored:
            continue
        call = description_of(reference)
        answer = answer_or_none(getattr(client(call.service), call.method), **call.arguments)
        if answer is not None and (key := key_of(reference, answer)):
            keys[str(reference)] = key
    return keys


def _runs_bucket(function: Function) -> tuple[str, ...]:
    """The bucket in which the files of a workflow's step are listed."""
    return () if function.runs_place is None else (function.runs_place.bucket,)
