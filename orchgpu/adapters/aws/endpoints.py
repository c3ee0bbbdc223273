"""The endpoints of S3, SQS, Lambda, STS and IAM, and their keys: decided in one function.

Precedence, first match wins:

1. an endpoint given explicitly (`--endpoint-url`);
2. `AWS_ENDPOINT_URL_<SERVICE>` or `AWS_ENDPOINT_URL`, unless
   `AWS_IGNORE_CONFIGURED_ENDPOINT_URLS` is true;
3. `LOCALSTACK_HOST`: `localstack_client` knows its rules (default port, `USE_SSL`);
4. the local system that runs in `$ORCHGPU_HOME` or `./.orchgpu`;
5. real AWS.

Every cloud other than AWS gets path-style addresses, and the keys test/test when the caller has
none; a profile in the environment counts there only when it exists. A local system that verifies
signatures gets its own keys, whatever the caller has. Real AWS never gets fake keys, and nothing is
created there without the caller's consent. Its region is the one given (`--region`, a
definition's), else the environment's, that of the stack in use, that of the profile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, NoRegionError
from localstack_client.config import get_service_endpoint

from contract.aws.clients import session_of
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import AwsClient, Client, Shape
from orchgpu.adapters.aws.settling import Settling
from orchgpu.local.home import Home, default_home
from orchgpu.local.stack import stack_in_use
from orchgpu.ports import Tolerating

#: The key that every emulator accepts, and that must never reach AWS.
FAKE_KEY = "test"
_FAKE_KEYS = frozenset({"test", "testing", "fake", "dummy", "mock", "local", "foo", "x"})
LOCAL_REGION = "us-east-1"
#: The account of clouds that have no STS (LocalStack's and the embedded cloud's default).
LOCAL_ACCOUNT = "000000000000"
#: Consent for a whole shell session, as `--yes-real-aws` for one command.
REAL_AWS_VARIABLE = "ORCHGPU_YES_REAL_AWS"


#: For botocore's sessions: neither an environment variable nor a file chooses the profile.
WITHOUT_PROFILE = {"profile": (None, None, None, None)}


class ClientSettings(Value):
    """The settings of a client, for boto3 and aioboto3. None leaves a choice to botocore."""

    service: str
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    profile: str | None = None
    s3_addressing: Literal["auto", "path"] = "auto"
    local: bool = False  #: True: not AWS itself
    source: str = "AWS"  #: the rule that decided, for people

    @property
    def session_variables(self) -> Shape | None:
        """For botocore's session: off AWS only `profile` counts, never the environment's."""
        return WITHOUT_PROFILE if self.local and self.profile is None else None

    @property
    def shown(self) -> str:
        """The endpoint, for people; where botocore reads it itself, from its variable."""
        return self.endpoint_url or os.environ.get(self.source) or self.source

    def client_arguments(self, make: Callable[..., object] = Config, /, **config: Any) -> Shape:
        """Keyword arguments of `session.client(service, …)`; `config` goes into botocore's."""
        settings = make(s3={"addressing_style": self.s3_addressing}, **config)
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "config": settings,
        }


def resolve(
    service: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
    home: Home | None = None,
) -> ClientSettings:
    """The settings for `service`. Raises INVALID for a bad endpoint and for fake keys on AWS."""
    environ = os.environ if environ is None else environ
    url, source, own_keys = _endpoint(service, endpoint_url, environ, home)
    if url is None or _is_aws(url):
        _refuse_fake_keys(environ, profile)
        return ClientSettings(
            service=service,
            endpoint_url=url,
            region=region or _region_of_stack(environ, home),
            profile=profile,
            source=source,
        )
    profile = profile or _known_profile(environ)
    keys = profile is not None or bool(environ.get("AWS_ACCESS_KEY_ID"))
    named = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return ClientSettings(
        service=service,
        endpoint_url=None if source.startswith("AWS_ENDPOINT_URL") else url,
        region=named or LOCAL_REGION,
        access_key_id=own_keys[0] or (None if keys else FAKE_KEY),
        secret_access_key=own_keys[1] or (None if keys else FAKE_KEY),
        profile=profile,
        s3_addressing="path",
        local=True,
        source=source,
    )


def variables_of(
    settings: ClientSettings, region: str, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Region and endpoints for a program elsewhere that uses the same cloud; without keys."""
    environ = os.environ if environ is None else environ
    named = {key: url for key, url in environ.items() if key.startswith("AWS_ENDPOINT_URL")}
    if not settings.source.startswith("AWS_ENDPOINT_URL"):
        named = {} if settings.endpoint_url is None else {"AWS_ENDPOINT_URL": settings.endpoint_url}
    return {"AWS_REGION": region, "AWS_DEFAULT_REGION": region, **named}


def _known_profile(environ: Mapping[str, str]) -> str | None:
    named = environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE")
    if not named:
        return None
    return named if named in botocore.session.Session(WITHOUT_PROFILE).available_profiles else None


def boto3_session(settings: ClientSettings) -> Client:
    """A boto3 session; its clients share the slow data. Raises INVALID for an unknown profile."""
    try:
        return session_of(settings.profile, settings.session_variables)
    except BotoCoreError as error:
        raise invalid(f"cannot use the AWS profile {settings.profile!r}: {error}") from error


def boto3_client(
    service: str, settings: ClientSettings, *, session: Client = None, **config: object
) -> Client:
    """A synchronous boto3 client, of `session` when one is given; close it after use.

    Raises UNAVAILABLE when no cloud is configured, INVALID for settings that cannot be used.
    """
    session = session or boto3_session(settings)
    require_cloud(settings, session)
    try:
        return session.client(service, **settings.client_arguments(**config))
    except NoRegionError as error:
        raise _no_cloud("no region") from error
    except (BotoCoreError, ValueError) as error:
        raise invalid(f"cannot make a client for {service}: {error}") from error


class Clients:
    """The clients of a cloud, made on first use and closed together.

    `settings` maps a service to how its client is made; `settled`: calls are repeated until AWS has
    settled; `config` goes into botocore's.
    """

    def __init__(
        self,
        settings: Callable[[str], ClientSettings],
        *,
        settled: bool = False,
        **config: object,
    ) -> None:
        self.settings = settings
        self._settled = settled
        self._config = config
        self._made: dict[str, AwsClient] = {}

    def __call__(self, service: str) -> AwsClient:
        if service not in self._made:
            settings = self.settings(service)
            made = boto3_client(service, settings, session=self._session, **self._config)
            self._made[service] = Settling().client(made) if self._settled else AwsClient(made)
        return self._made[service]

    @cached_property
    def _session(self) -> Client:
        return boto3_session(self.settings("s3"))

    def close(self) -> None:
        for client in self._made.values():
            client.close()


def place_of(clients: Clients) -> DeployTarget:
    s3, local = clients("s3"), clients.settings("s3").local
    return DeployTarget(
        account=_account(clients("sts"), local=local),
        region=str(s3.meta.region_name or "us-east-1"),
        partition=str(s3.meta.partition),
        local=local,
    )


def _account(sts: Client, *, local: bool) -> str:
    absent = (ErrorCode.INVALID, ErrorCode.NOT_FOUND) if local else ()
    with Tolerating(*absent):
        return str(sts.get_caller_identity()["Account"])
    return LOCAL_ACCOUNT


def require_cloud(settings: ClientSettings, session: Client = None) -> None:
    """Raise UNAVAILABLE when no local system runs and AWS is not configured either.

    Without keys every call would fail, each with another message about keys.
    """
    if settings.local or settings.endpoint_url is not None or settings.access_key_id is not None:
        return
    session = session or boto3_session(settings)
    try:
        found = session.get_credentials()
    except BotoCoreError as error:
        raise invalid(f"cannot use the AWS credentials: {error}") from error
    if found is None:
        region = settings.region or session.region_name
        raise _no_cloud("no credentials" if region else "no credentials and no region")


def _no_cloud(missing: str) -> AppError:
    return AppError(
        ErrorCode.UNAVAILABLE,
        f"no local system runs in {default_home().path}, and AWS has {missing} configured: start "
        "one with `orchgpu up`, configure AWS (`aws configure`), or give --endpoint-url",
        aws_has=missing,
    )


def guard_real_aws(settings: ClientSettings, *, allowed: bool) -> None:
    """Raise DENIED when resources would be created on real AWS without consent."""
    if settings.local or allowed or os.environ.get(REAL_AWS_VARIABLE) == "1":
        return
    message = (
        "this would create resources on real AWS, which may cost money; add --yes-real-aws (or"
        f" {REAL_AWS_VARIABLE}=1), start a local system with `orchgpu up`, or give --endpoint-url"
    )
    raise AppError(ErrorCode.DENIED, message)


def _endpoint(
    service: str, explicit: str | None, environ: Mapping[str, str], home: Home | None
) -> tuple[str | None, str, tuple[str, str]]:
    none = ("", "")
    if explicit:
        return _checked(explicit, "--endpoint-url"), "--endpoint-url", none
    if environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        for name in (f"AWS_ENDPOINT_URL_{service.upper()}", "AWS_ENDPOINT_URL"):
            if environ.get(name):
                return _checked(environ[name], name), name, none
    if environ.get("LOCALSTACK_HOST"):
        return _localstack(service, environ["LOCALSTACK_HOST"]), "LOCALSTACK_HOST", none
    system = (home or _home(environ)).read_system()
    if system is not None:
        return system.endpoint, "the local system", (system.access_key, system.secret_key)
    return None, "AWS", none


def _region_of_stack(environ: Mapping[str, str], home: Home | None) -> str | None:
    """The region of the stack in use, unless the environment names one; None: botocore decides."""
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        return None
    stack = stack_in_use(home or _home(environ), environ)
    return None if stack is None else stack.region


def _home(environ: Mapping[str, str]) -> Home:
    named = environ.get("ORCHGPU_HOME")
    return Home(Path(named)) if named else default_home()


def _localstack(service: str, host: str) -> str:
    try:
        url = get_service_endpoint(service, localstack_host=host)
    except RuntimeError as error:
        raise invalid(f"LOCALSTACK_HOST: {error}") from error
    if url is None:
        raise invalid(f"localstack_client does not know the service {service!r}")
    return _checked(str(url), "LOCALSTACK_HOST")


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise invalid(f"{source}: {url!r} is not a valid endpoint; write http://host:port")
    return url


def _is_aws(url: str) -> bool:
    host = (urlsplit(url).hostname or "").lower()
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


def _refuse_fake_keys(environ: Mapping[str, str], profile: str | None) -> None:
    key = environ.get("AWS_ACCESS_KEY_ID", "")
    if profile is None and key.lower() in _FAKE_KEYS:
        raise invalid(
            f"AWS_ACCESS_KEY_ID={key!r} is a key for emulators, but no endpoint is set: give"
            " --endpoint-url, set AWS_ENDPOINT_URL or LOCALSTACK_HOST, or run `orchgpu up`"
        )
