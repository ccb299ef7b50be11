"""How to open an `s3://` URL: with which credentials, in which region, at which endpoint.

obstore finds keys in the environment, a web identity, and the credentials of a container or an
instance. botocore resolves a profile. Keys in the environment take precedence over a profile, and
so does a web identity, except over a profile with a `role_arn`. Region and endpoint are those of
the environment, then those of the profile, wherever the keys come from.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from standfast.errors import BadOption, printable, shortened

_DEFAULT: Final = re.compile(rb"^\[\s*(profile\s+)?[\"']?default[\"']?\s*\]", re.MULTILINE)
ENDPOINT: Final = "aws_endpoint_url_s3"
"""Of all its names, this one takes precedence over the environment that obstore reads."""
_VALID: Final = timedelta(minutes=9)
"""How long keys of botocore are used: it renews those that expire within ten minutes."""
Provider = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """What an `S3Store` of obstore is opened with; nothing in `config` is secret."""

    config: dict[str, str]
    client_options: dict[str, bool]
    credential_provider: Provider | None = field(repr=False)
    """Returns the keys of a profile; None where obstore finds credentials, or needs none."""


def s3_options() -> Options:
    """What the environment and the files of the AWS tools say; raises BadOption."""
    settings, provider = _profile()
    region = _first("AWS_REGION", "AWS_DEFAULT_REGION") or settings.get("region", "")
    given = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = given or settings.get("endpoint_url", "")
    ignores = "ignore_configured_endpoint_urls"
    if (_first(f"AWS_{ignores.upper()}") or settings.get(ignores, "")).lower() == "true":
        # obstore would use the one in the environment.
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        endpoint = f"https://s3.{region or 'us-east-1'}.{domain}" if given else ""
    config = {"region": region or "us-east-1"} if region or endpoint else {}
    if not endpoint:
        return Options(config, {}, provider)
    config[ENDPOINT] = _checked(endpoint)
    return Options(config, {"allow_http": endpoint.startswith("http://")}, provider)


def _profile() -> tuple[dict[str, str], Provider | None]:
    """The settings of the profile that is named or the default one, and its keys if needed."""
    name = _first("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    is_anonymous = _first("AWS_SKIP_SIGNATURE").lower() in {"1", "true", "yes", "on", "y"}
    has_keys = is_anonymous or bool(_first("AWS_ACCESS_KEY_ID"))
    if has_keys and not is_anonymous and not _first("AWS_SECRET_ACCESS_KEY"):
        raise BadOption("AWS_ACCESS_KEY_ID is set, but not AWS_SECRET_ACCESS_KEY")
    has_identity = bool(_first("AWS_WEB_IDENTITY_TOKEN_FILE") and _first("AWS_ROLE_ARN"))
    files = [
        Path(_first("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(),
        Path(_first("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser(),
    ]
    shown = f"profile {shortened(printable(name or 'default'))!r}"
    try:
        if not name and not any(p.exists() and _DEFAULT.search(p.read_bytes()) for p in files):
            return {}, None
        session = importlib.import_module("botocore.session").Session(profile=name or "default")
        settings = dict(session.get_scoped_config())
        if "services" in settings:
            service = session.full_config["services"][settings["services"]].get("s3", {})
            settings["endpoint_url"] = service.get("endpoint_url", settings.get("endpoint_url", ""))
        if has_keys or (has_identity and "role_arn" not in settings):
            return settings, None
        for method in ("container-role", "iam-role"):  # obstore asks these itself
            session.get_component("credential_provider").remove(method)
        if session.get_credentials() is None:
            return settings, None
        auth = importlib.import_module("obstore.auth.boto3")
        return settings, _guarded(auth.Boto3CredentialProvider(session, ttl=_VALID), shown)
    except ImportError:
        if not name and (has_keys or has_identity):
            return {}, None
        problem = (
            "needs boto3: run `pip install boto3 obstore`, or unset AWS_PROFILE and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    except Exception as error:  # its text may quote the files, or what a program printed
        problem = f"in {files[0]} or {files[1]} cannot be used: {type(error).__name__}"
    raise BadOption(f"{shown} {problem}")


def _guarded(provider: Provider, shown: str) -> Provider:
    """The same, without what botocore quotes of a `credential_process` that fails."""
    logging.getLogger("botocore.credentials").addFilter(_without_traceback)

    def keys() -> dict[str, Any]:
        try:
            return provider()
        except Exception as error:
            problem = type(error).__name__
        raise BadOption(f"the keys of {shown} cannot be renewed: {problem}")

    return keys


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _checked(endpoint: str) -> str:
    """An endpoint that can be one; the others are not shown, there may be a password in them."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        good &= parts.username is None and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good or not endpoint.isprintable():
        raise BadOption(
            "the endpoint of S3 must be a URL such as https://host or http://host:8333, "
            "without a user, query or fragment"
        )
    return endpoint.rstrip("/")
