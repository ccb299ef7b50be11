"""How to open an `s3://` URL: who we are, in which region, at which endpoint.

As botocore does it, the first of these that is there is taken:

1. AWS_SKIP_SIGNATURE: nobody, for a bucket that all may read;
2. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN. They win over AWS_PROFILE
   too: in botocore only a profile that a program names itself wins over them;
3. a profile with a `role_arn`;
4. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN;
5. a profile that signs on by sso; keys in `credentials`; a login; a `credential_process`; keys in
   `config`;
6. the container, or the instance that this runs on.

The profile is the one that AWS_PROFILE names, or the default one. Region and endpoint are looked
for in the environment, then in the profile, wherever the keys come from. obstore finds 4 and 6
itself; 3, sso and logins need boto3. A profile that was named must be there in any case.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from standfast.errors import BadOption
from standfast.store.remote.credential_process import CredentialProcess
from standfast.store.remote.keys import Keys
from standfast.store.remote.profiles import Profile, profile_of

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The last one is obstore's own."""
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_TOKENS: Final = ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
_FRESH: Final = timedelta(minutes=5)
"""How long what boto3 hands out is used: it renews what would end in ten minutes."""
DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True)
class Options:
    """What an `S3Store` of obstore is opened with; nothing in `config` is secret."""

    config: dict[str, str]
    client_options: dict[str, bool]
    keys: Callable[[], Keys] | None = field(repr=False)
    """Gives keys that are valid now; None where obstore has to find them, or needs none."""

    @property
    def credential_provider(self) -> Callable[[], dict[str, Any]] | None:
        """The keys, as obstore asks for them."""
        keys = self.keys
        return None if keys is None else lambda: keys().for_obstore()

    @property
    def endpoint(self) -> str | None:
        """Where the server is, without the bucket; None: at AWS."""
        return self.config.get("aws_endpoint_url_s3")

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        return self.config.get("region", DEFAULT_REGION)


def s3_options(environ: Mapping[str, str] = os.environ) -> Options:
    """What the environment and the files of the AWS tools say; raises BadOption.

    Nothing is sent. A `credential_process` is run, and what it gives is kept until it expires.
    """
    profile = profile_of(environ)
    config, client_options = {}, {}
    region = _first(environ, _REGIONS) or profile.settings.get("region")
    endpoint = _endpoint(environ, profile, region)
    if endpoint is not None:
        # Of all names for it, this is the one that wins over the environment that obstore reads.
        config["aws_endpoint_url_s3"] = endpoint
        client_options["allow_http"] = endpoint.startswith("http://")
    if region is not None or endpoint is not None:
        config["region"] = region or DEFAULT_REGION
    return Options(config, client_options, _keys(environ, profile))


def _endpoint(environ: Mapping[str, str], profile: Profile, region: str | None) -> str | None:
    ignored = environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or profile.settings.get(
        "ignore_configured_endpoint_urls", ""
    )
    found = _first(environ, _ENDPOINTS)
    if ignored.lower() == "true":
        # obstore would take what is in the environment.
        return aws_endpoint(region or DEFAULT_REGION) if found else None
    endpoint = found or profile.endpoint
    return None if endpoint is None else _checked(endpoint)


def aws_endpoint(region: str) -> str:
    """Where S3 itself is, for a region."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://s3.{region}.{domain}"


def _checked(endpoint: str) -> str:
    """An endpoint that can be one; the others are not shown, there may be a password in them."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not endpoint.isprintable():
        raise BadOption("the endpoint of S3 must be a URL such as https://host or http://host:8333")
    if parts.username is not None or parts.query or parts.fragment:
        raise BadOption("the endpoint of S3 must have no user, query or fragment in it")
    return endpoint.rstrip("/")


def _keys(environ: Mapping[str, str], profile: Profile) -> Callable[[], Keys] | None:
    settings = profile.settings
    if environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on", "y"):
        return None
    if environ.get("AWS_ACCESS_KEY_ID"):
        return _fixed(
            environ["AWS_ACCESS_KEY_ID"],
            environ.get("AWS_SECRET_ACCESS_KEY"),
            _first(environ, _TOKENS),
            "AWS_ACCESS_KEY_ID is set, but not AWS_SECRET_ACCESS_KEY",
        )
    if "role_arn" in settings:
        return _by_boto3(profile, "takes a role (role_arn)")
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN"):
        return None
    if "sso_account_id" in settings or "sso_role_name" in settings:
        return _by_boto3(profile, "signs on by sso")
    if "aws_access_key_id" in profile.shared:
        return _of_profile(profile.shared, profile)
    if "login_session" in settings:
        return _by_boto3(profile, "uses a login (login_session)")
    if "credential_process" in settings:
        process = CredentialProcess(settings["credential_process"], profile.shown)
        process()  # what is wrong with it should be said now
        return process
    if "aws_access_key_id" in settings:
        return _of_profile(settings, profile)
    return None


def _of_profile(settings: Mapping[str, str], profile: Profile) -> Callable[[], Keys]:
    return _fixed(
        settings["aws_access_key_id"],
        settings.get("aws_secret_access_key"),
        settings.get("aws_session_token", settings.get("aws_security_token")),
        f"profile {profile.shown} has an aws_access_key_id, but no aws_secret_access_key",
    )


def _fixed(id: str, secret: str | None, token: str | None, problem: str) -> Callable[[], Keys]:
    if not id or not secret:
        raise BadOption(problem)
    keys = Keys(id, secret, token)
    return lambda: keys


def _by_boto3(profile: Profile, why: str) -> Callable[[], Keys]:
    """Keys out of boto3, which knows how to get and renew them."""
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        boto3 = None
    if boto3 is None:
        raise BadOption(
            f"profile {profile.shown} {why}, which needs boto3: run `pip install boto3`, "
            "or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN as "
            "`aws configure export-credentials --format env` prints them"
        )
    problem = "no credentials"
    try:
        credentials = boto3.Session(profile_name=profile.name).get_credentials()
    except Exception as error:  # botocore has its own, which may name anything
        problem, credentials = type(error).__name__, None
    if credentials is None:
        raise BadOption(f"boto3 gets no keys for profile {profile.shown}, which {why}: {problem}")

    def keys() -> Keys:
        until = datetime.now(UTC) + _FRESH
        frozen = credentials.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token, until)

    return keys


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
