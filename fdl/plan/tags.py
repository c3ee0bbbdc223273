"""Tags of what deploy makes: for people, for cost reports, and to know its own tags again.

Others may tag the same resources (AWS itself, tag policies of an organisation). `orchgpu:tags`
names the user's own, so that one which a file no longer has is removed and foreign ones survive.
"""

from __future__ import annotations

from collections.abc import Mapping

from fdl.model import Function

#: Tag with the zip that an image function runs on a cloud that is not AWS, and that moto's bridge
#: runs for every function (moto serves no zips): s3://bucket/key.
PACKAGE_TAG = "orchgpu:package"
#: Tag with the package's hash, set after the update: without it the update was interrupted.
DEPLOYED_TAG = "orchgpu:deployed"
#: Tag with the name of the function that a resource was made for.
FUNCTION_TAG = "orchgpu:function"
#: Tag with the name of the workflow that a resource was made for.
WORKFLOW_TAG = "orchgpu:workflow"
#: Tag with the names of the tags of the definition, by spaces.
NAMES_TAG = "orchgpu:tags"
CREATOR: Mapping[str, str] = {"createdby": "orchgpu"}
_OURS = (*CREATOR, PACKAGE_TAG, DEPLOYED_TAG, FUNCTION_TAG, WORKFLOW_TAG, NAMES_TAG)


def tags_of(function: Function) -> dict[str, str]:
    """The tags of every resource of a function."""
    declared = function.function.tags
    names = {NAMES_TAG: " ".join(declared)} if declared else {}
    return {**CREATOR, FUNCTION_TAG: function.name, **declared, **names}


def workflow_tags(workflow: str, first: Function) -> dict[str, str]:
    """The tags of every resource of a workflow: the declared ones are those of its first step."""
    tags = {name: value for name, value in tags_of(first).items() if name != FUNCTION_TAG}
    return {WORKFLOW_TAG: workflow, **tags}


def own_tags(found: Mapping[str, str]) -> dict[str, str]:
    """The tags that deploys made, of all that a resource has."""
    names = (*_OURS, *found.get(NAMES_TAG, "").split())
    return {name: found[name] for name in names if name in found}
