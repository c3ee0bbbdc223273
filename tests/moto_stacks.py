"""The part of a template that moto's CloudFormation makes.

It has no stand-in for some kinds, of which one fails a whole stack, and knows no image by SSM.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import boto3
from moto.ec2.models.amis import AMIS

from orchgpu.infra.template import Template, read_template

#: Kinds that moto 5.2 does not make.
MISSING = {
    "AWS::Budgets::Budget",
    "AWS::CloudWatch::Alarm",
    "AWS::EC2::InstanceConnectEndpoint",
    "AWS::SecretsManager::Secret",
}
#: The first image that moto has: to describe its 1,300 takes seconds.
IMAGE: str = AMIS[0]["ami_id"]


@cache
def subset(*, without: tuple[str, ...] = ()) -> Template:
    """The template without what moto does not make; `without`: names of more resources."""
    content = read_template().content
    gone = {
        name
        for name, one in content["Resources"].items()
        if one["Type"] in MISSING or name in without
    }
    content["Resources"] = {k: v for k, v in content["Resources"].items() if k not in gone}
    for about in content["Parameters"].values():
        if about["Type"].startswith("AWS::SSM"):
            about["Type"] = "String"
    return Template(json.dumps(content).replace("${System} ", ""))


def subset_file(folder: Path, *, without: tuple[str, ...] = ()) -> str:
    """The same as a file."""
    file = folder / "subset.json"
    file.write_text(subset(without=without).text)
    return str(file)


def images() -> dict[str, str]:
    """Parameters of images that moto has."""
    return {"GpuImage": IMAGE, "SchedulerImage": IMAGE}


def network() -> dict[str, str]:
    """Parameters of moto's default network: moto cannot remove a route table that it made."""
    ec2 = boto3.client("ec2")
    subnets = sorted(ec2.describe_subnets()["Subnets"], key=lambda one: one["AvailabilityZone"])
    ec2.close()
    return {
        "Vpc": subnets[0]["VpcId"],
        "SubnetA": subnets[0]["SubnetId"],
        "SubnetB": subnets[1]["SubnetId"],
    }
