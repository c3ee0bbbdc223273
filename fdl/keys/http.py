"""`http:`, a Function URL of the function on AWS; `service:`, the URL that serves it elsewhere."""

from __future__ import annotations

from fdl.schema.scalars import Flag, Text
from fdl.schema.schema import Block, Key, ListOf
from fdl.served import Http, Service

HTTP = Block(
    into=Http,
    short="enabled",
    keys={
        "enabled": Key(reader=Flag(), about="Whether there is a URL."),
        "origins": Key(
            reader=ListOf(
                item=Text(
                    pattern=r"https?://[A-Za-z0-9.-]+(:\d{1,5})?",
                    what="an origin (https://HOST)",
                    short="https://HOST",
                )
            ),
            about="Pages of these origins may call it (CORS).",
            default="none",
        ),
    },
)

SERVICE = Block(
    into=Service,
    short="url",
    keys={
        "url": Key(
            reader=Text(
                pattern=r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[A-Za-z0-9._~%/-]*)?",
                what="an http:// or https:// URL without user, password and query",
                short="a URL",
            ),
            required=True,
            about="Receives a CloudEvent for each start: a Knative service, or OpenFaaS's"
            " `/async-function/NAME`.",
        ),
    },
)
