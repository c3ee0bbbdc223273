"""Names of variables with an effect of their own on the script or its children."""

from __future__ import annotations

import re

#: Of the runner's own settings.
OUR_NAME = re.compile(r"ORCHGPU_")
#: Variables that the runner sets for every run, over the user's.
SET_BY_RUNNER = (
    "INPUT_FILE_PATH",
    "TMP_INPUT_DIR",
    "TMP_OUTPUT_DIR",
    "STORAGE_OBJECT_KEY",
    "EVENT",
    "EVENT_TIME",
    "TRACEPARENT",
)
#: Variables by which a loader or an interpreter runs code before the program's own.
LOADERS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PERL5OPT",
    "PERL5DB",
    "RUBYOPT",
    "NODE_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "GCONV_PATH",
    "OCL_ICD_VENDORS",
)
#: Search paths of programs and modules.
SEARCHED = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PERL5LIB",
    "RUBYLIB",
    "NODE_PATH",
    "CLASSPATH",
    "IFS",
)
#: Credentials that AWS SDKs prefer to the role of the function.
CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def risky(name: str) -> str:
    """The side effect of a variable on the script or its children; empty = none."""
    if name in LOADERS:
        return (
            "loads code into all programs that the script starts; set it inside the script instead"
        )
    if name in CREDENTIALS:
        return "takes the place of the function's role in the script; give the role the access"
    if name in SEARCHED:
        return "changes which programs or modules are found; set it inside the script instead"
    return ""
