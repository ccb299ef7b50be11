"""The two files in which people keep AWS profiles, read as the AWS tools read them.

`~/.aws/config` has sections `[default]`, `[profile name]` and `[services name]`;
`~/.aws/credentials` has `[default]` and `[name]`. What both say of one profile is taken from
`credentials`. https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
"""

from __future__ import annotations

import configparser
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standfast.errors import BadOption, printable, shortened

_NAMES: Final = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
"""In the order of the AWS CLI 2 and of most SDKs; botocore itself looks at the second one first."""

Section = Mapping[str, str]


@dataclass(frozen=True)
class Profile:
    """What the files say of one profile; empty if nobody named one and there is no default."""

    name: str
    settings: Section = field(repr=False)
    shared: Section = field(repr=False)
    """Those of the settings that stand in `credentials`."""
    endpoint: str | None
    """For S3 alone if there is one, or for all services."""

    @property
    def shown(self) -> str:
        """Its name, for a message."""
        return _shown(self.name)


def profile_of(environ: Mapping[str, str]) -> Profile:
    """The profile that the environment names, or the default one."""
    named = next((environ[name] for name in _NAMES if environ.get(name)), None)
    name = named or "default"
    config_path = _path(environ, "AWS_CONFIG_FILE", "config")
    credentials_path = _path(environ, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    config, credentials = _sections(config_path), _sections(credentials_path)
    settings = _of_config(config, "profile", name)
    if settings is None and name == "default":
        settings = config.get(name)
    shared = credentials.get(name)
    if named is not None and settings is None and shared is None:
        raise BadOption(
            f"there is no profile {_shown(named)} in {config_path} or {credentials_path}: "
            "AWS_PROFILE or AWS_DEFAULT_PROFILE names it"
        )
    merged = {**(settings or {}), **(shared or {})}
    return Profile(name, merged, shared or {}, _endpoint(merged, config, name, config_path))


def _endpoint(
    settings: Section, config: Mapping[str, Section], profile: str, path: Path
) -> str | None:
    services = settings.get("services")
    if services is None:
        return settings.get("endpoint_url")
    section = _of_config(config, "services", services)
    if section is None:
        raise BadOption(
            f"profile {_shown(profile)} names the services {_shown(services)}, "
            f"which {path} does not have"
        )
    return dict(_nested(section.get("s3", ""))).get("endpoint_url", settings.get("endpoint_url"))


def _nested(text: str) -> Iterator[tuple[str, str]]:
    """The lines below `s3 =`."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        yield name.strip(), value.strip()


def _of_config(config: Mapping[str, Section], kind: str, name: str) -> Section | None:
    """The section `[kind name]`, whose name may be quoted."""
    for title, section in config.items():
        if title.startswith(kind):
            try:
                if shlex.split(title) == [kind, name]:
                    return section
            except ValueError:  # a quote that nobody closed
                continue
    return None


def _path(environ: Mapping[str, str], variable: str, name: str) -> Path:
    given = environ.get(variable)
    return Path(os.path.expanduser(given)) if given else Path(os.path.expanduser("~/.aws"), name)


def _sections(path: Path) -> Mapping[str, Section]:
    """All sections of a file; none if it is not there."""
    problem = None
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except (configparser.Error, ValueError):
        # What these say, and where they come from, has lines of the file in it.
        problem = "is not in the format of the AWS tools"
    if problem is not None:
        raise BadOption(f"{path} {problem}")
    return {title: dict(parser.items(title)) for title in parser.sections()}


def _shown(name: str) -> str:
    return repr(shortened(printable(name)))
