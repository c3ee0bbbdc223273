"""The key `http:`: a Function URL of the function on AWS."""

from __future__ import annotations

from fdl.schema.scalars import Flag, Text
from fdl.schema.schema import Block, Key, ListOf
from fdl.served import Http

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
