"""Who we are at an object store: the environment, the profiles, and what is never shown."""

import json
import os
import sys
import textwrap
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from standfast.errors import BadOption
from standfast.store.remote.credentials import Options, s3_options
from standfast.store.remote.keys import Keys

ID, SECRET, TOKEN = "AKIDOFNOBODY", "the-secret-itself", "the-token-itself"


class Home:
    """The two files of the AWS tools, and an environment that names them."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "config"
        self.credentials = folder / "credentials"
        self.folder = folder

    def options(self, **environ: str) -> Options:
        return s3_options(
            {
                "AWS_CONFIG_FILE": str(self.config),
                "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
                **environ,
            }
        )

    def keys(self, **environ: str) -> Keys:
        keys = self.options(**environ).keys
        assert keys is not None
        return keys()

    def refusal(self, **environ: str) -> str:
        """All that a person, or a log, would see of a refusal."""
        with pytest.raises(BadOption) as caught:
            self.options(**environ)
        shown = "".join(traceback.format_exception(caught.value))
        for hidden in (ID, SECRET, TOKEN):
            assert hidden not in shown
        return str(caught.value)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def _section(title: str, **settings: str) -> str:
    return f"[{title}]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


def _static(title: str, id: str = ID) -> str:
    return _section(title, aws_access_key_id=id, aws_secret_access_key=SECRET)


def _program(home: Home, said: object, status: int = 0) -> Path:
    """A credential_process: says something, and counts how often it was asked."""
    path = home.folder / "keys.py"
    path.write_text(
        textwrap.dedent(f"""\
            import sys
            with open({str(home.folder / "asked")!r}, "a") as asked:
                print(*sys.argv[1:], file=asked)
            print({said if isinstance(said, str) else json.dumps(said)!r})
            print({SECRET!r}, file=sys.stderr)
            sys.exit({status})
        """)
    )
    return path


def _asked(home: Home) -> list[str]:
    return (home.folder / "asked").read_text().splitlines()


def _said(**more: object) -> dict[str, object]:
    return {"Version": 1, "AccessKeyId": ID, "SecretAccessKey": SECRET, **more}


BY_NAME = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET}


def test_without_anything_obstore_looks_for_itself(home):
    assert home.options() == Options({}, {}, None)
    assert home.options().credential_provider is None


def test_keys_of_the_environment_win_over_those_of_a_profile(home):
    assert home.keys(**BY_NAME) == Keys(ID, SECRET)
    assert home.keys(**BY_NAME, AWS_SESSION_TOKEN=TOKEN) == Keys(ID, SECRET, TOKEN)
    home.credentials.write_text(_static("work", "AKIDOFTHEPROFILE"))
    assert home.keys(**BY_NAME, AWS_PROFILE="work").id == ID
    assert home.keys(AWS_PROFILE="work").id == "AKIDOFTHEPROFILE"


def test_half_of_a_pair_of_keys_is_refused(home):
    assert "AWS_SECRET_ACCESS_KEY" in home.refusal(AWS_ACCESS_KEY_ID=ID)
    home.credentials.write_text(_section("default", aws_access_key_id=ID))
    assert "aws_secret_access_key" in home.refusal()


def test_the_profile_is_the_one_that_is_named(home):
    home.credentials.write_text(_static("default", "AKIDDEFAULT") + _static("work", "AKIDWORK"))
    assert home.keys().id == "AKIDDEFAULT"
    for variables in (
        {"AWS_PROFILE": "work"},
        {"AWS_DEFAULT_PROFILE": "work"},
        {"AWS_PROFILE": "work", "AWS_DEFAULT_PROFILE": "default"},
    ):
        assert home.keys(**variables).id == "AKIDWORK"
    for keys in ({}, BY_NAME):
        message = home.refusal(AWS_PROFILE="wrok", **keys)
        assert all(name in message for name in ("wrok", str(home.config), str(home.credentials)))


@pytest.mark.parametrize("title", ["profile work", 'profile "work"'])
def test_a_profile_may_be_in_the_config_file(home, title):
    home.config.write_text(_static(title) + _section("work", region="none-of-the-profile"))
    assert home.keys(AWS_PROFILE="work") == Keys(ID, SECRET)
    assert "region" not in home.options(AWS_PROFILE="work").config


def test_a_profile_may_be_in_both_files(home):
    home.config.write_text(
        _section("default", aws_access_key_id="AKIDOTHER", region="eu-west-1", output="json")
    )
    home.credentials.write_text(_static("default") + f"aws_session_token = {TOKEN}\n")
    assert home.keys() == Keys(ID, SECRET, TOKEN)
    assert home.options().region == "eu-west-1"
    home.credentials.write_text(_static("default") + "region = eu-west-2\n")
    assert home.options().region == "eu-west-2"


def test_the_files_are_looked_for_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(_static("default"))
    (tmp_path / ".aws" / "config").write_text(_section("default", region="eu-west-3"))
    options = s3_options({})
    assert options.keys is not None
    assert (options.keys().id, options.region) == (ID, "eu-west-3")


@pytest.mark.parametrize(
    "content",
    [
        f"[default\n{SECRET}\n".encode(),
        f"{SECRET} = 1\n[default]\n".encode(),
        f"[default]\n{SECRET}\n".encode(),
        f"[default]\n{SECRET} = 1\n{SECRET} = 2\n".encode(),
        f"[default]\n{SECRET} = \xff\n".encode("latin-1"),
    ],
    ids=["title", "no title", "no value", "twice", "no text"],
)
def test_a_file_that_cannot_be_parsed_is_named_and_not_shown(home, content):
    home.credentials.write_bytes(content)
    assert str(home.credentials) in home.refusal()


def test_a_file_that_cannot_be_read_is_named(home):
    home.config.mkdir()
    assert str(home.config) in home.refusal()


def test_the_region_is_that_of_the_environment_then_of_the_profile(home):
    home.config.write_text(_section("default", region="of-the-profile"))
    assert home.options().config == {"region": "of-the-profile"}
    assert home.options(AWS_DEFAULT_REGION="by-default").region == "by-default"
    assert home.options(AWS_DEFAULT_REGION="by-default", AWS_REGION="first").region == "first"


SERVICES = """
[default]
endpoint_url = https://of-the-profile
services = mine
[profile plain]
endpoint_url = https://of-the-profile
[profile lost]
services = none
[services mine]
s3 =
  endpoint_url = https://of-the-service
  other = 1
"""


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, "https://of-the-service"),
        ({"AWS_PROFILE": "plain"}, "https://of-the-profile"),
        ({"AWS_ENDPOINT_URL": "https://all/"}, "https://all"),
        ({"AWS_ENDPOINT_URL": "https://all", "AWS_ENDPOINT_URL_S3": "https://s3"}, "https://s3"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, None),
    ],
    ids=["service", "profile", "all", "s3", "ignored"],
)
def test_the_endpoint_is_looked_for_in_the_order_of_the_aws_tools(home, environ, endpoint):
    home.config.write_text(SERVICES)
    options = home.options(**environ)
    assert options.endpoint == endpoint
    assert options.config == ({} if endpoint is None else options.config | {"region": "us-east-1"})


def test_an_endpoint_in_the_environment_that_is_ignored_does_not_reach_obstore(home):
    environ = {"AWS_ENDPOINT_URL_S3": "https://s3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"}
    options = home.options(**environ, AWS_REGION="eu-west-1")
    assert options.endpoint == "https://s3.eu-west-1.amazonaws.com"


def test_the_endpoint_given_is_the_one_that_obstore_takes(home, monkeypatch):
    store = pytest.importorskip("obstore.store")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "https://127.0.0.1:2")
    options = home.options(AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_SKIP_SIGNATURE="true")
    opened = store.S3Store(
        "bucket",
        config=options.config,
        client_options=options.client_options,
        retry_config={"max_retries": 0},
        skip_signature=True,
    )
    with pytest.raises(Exception, match=r"http://127\.0\.0\.1:1/bucket"):
        opened.head("name")


def test_services_that_are_not_there_are_refused(home):
    home.config.write_text(SERVICES)
    assert "'none'" in home.refusal(AWS_PROFILE="lost")


def test_http_is_allowed_to_an_endpoint_that_asks_for_it(home):
    assert home.options(AWS_ENDPOINT_URL="http://host:1").client_options == {"allow_http": True}
    assert home.options(AWS_ENDPOINT_URL="https://host").client_options == {"allow_http": False}
    assert home.options().client_options == {}


@pytest.mark.parametrize(
    "endpoint",
    [
        "host:8333",
        "ftp://host",
        "https://",
        f"http://me:{SECRET}@host",
        f"http://host?key={SECRET}",
        "http://host:port",
        "http://[",
        "http://ho\nst",
    ],
    ids="scheme ftp host password query port bracket line".split(),
)
def test_an_endpoint_that_is_none_is_refused(home, endpoint):
    assert "endpoint" in home.refusal(AWS_ENDPOINT_URL=endpoint)


def test_without_a_signature_or_with_a_token_of_the_container_no_profile_is_used(home):
    home.credentials.write_text(_static("default"))
    assert home.options(AWS_SKIP_SIGNATURE="true").keys is None
    assert home.options(AWS_SKIP_SIGNATURE="false").keys is not None
    assert home.options(AWS_WEB_IDENTITY_TOKEN_FILE="/x", AWS_ROLE_ARN="arn").keys is None


def test_a_process_prints_keys(home):
    program = _program(home, _said(SessionToken=TOKEN))
    home.config.write_text(
        _static("default", "AKIDINCONFIG")
        + f'credential_process = "{sys.executable}" "{program}" "$HOME" `id` "a b" ; true\n'
    )
    assert home.keys() == Keys(ID, SECRET, TOKEN)
    assert _asked(home) == ["$HOME `id` a b ; true"], "no shell has seen it"


def test_keys_in_the_credentials_file_win_over_a_process(home):
    home.config.write_text(_section("default", credential_process="/nowhere"))
    home.credentials.write_text(_static("default"))
    assert home.keys().id == ID


@pytest.mark.parametrize(
    ("minutes", "times"), [(None, 1), (60, 1), (9, 3)], ids=["for ever", "an hour", "nine minutes"]
)
def test_a_process_is_run_again_when_its_keys_expire(home, minutes, times):
    until = None if minutes is None else datetime.now(UTC) + timedelta(minutes=minutes)
    said = _said() if until is None else _said(Expiration=until.isoformat())
    program = _program(home, said)
    home.config.write_text(_section("default", credential_process=f"{sys.executable} {program}"))
    options = home.options()  # asks the first time
    assert options.keys is not None
    assert options.credential_provider is not None
    assert options.keys().until == until
    assert options.credential_provider() == {
        "access_key_id": ID,
        "secret_access_key": SECRET,
        "token": None,
        "expires_at": until,
    }
    assert len(_asked(home)) == times


@pytest.mark.parametrize(
    "said",
    [
        SECRET,
        "[]",
        "null",
        {"Version": 1},
        _said(Version=2),
        _said(AccessKeyId=7),
        _said(SecretAccessKey=""),
        _said(SessionToken=[TOKEN]),
        _said(Expiration=SECRET),
        _said(Expiration=7),
    ],
    ids="noise list null nothing version number empty token date time".split(),
)
def test_a_process_that_says_something_else_is_refused(home, said, monkeypatch):
    monkeypatch.setenv("SAID", json.dumps(said) if isinstance(said, dict) else str(said))
    home.config.write_text(_section("default", credential_process="printenv SAID"))
    assert "JSON" in home.refusal()


def test_a_process_that_fails_is_refused_without_its_words(home, capfd):
    program = _program(home, _said(), status=3)
    command = f"{sys.executable} {program} {SECRET}"
    home.config.write_text(_section("default", credential_process=command))
    assert "status 3" in home.refusal()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "command", [f"/nowhere/{SECRET}", f'"{SECRET}', "''", f"sh -c 'sleep 60' {SECRET}"]
)
def test_a_process_that_cannot_be_run_or_hangs_is_refused(home, command, seams):
    seams.bound("patience of a credential process", 0.05)
    home.config.write_text(_section("default", credential_process=command))
    assert "'default'" in home.refusal()


NEEDS_BOTO3 = {
    "a role": {"role_arn": "arn:1", "source_profile": "default"},
    "a web identity": {"role_arn": "arn:1", "web_identity_token_file": "/x"},
    "sso": {"sso_session": "s", "sso_account_id": "1", "sso_role_name": "r"},
    "a login": {"login_session": "arn:1"},
}


@pytest.mark.parametrize("settings", NEEDS_BOTO3.values(), ids=NEEDS_BOTO3)
def test_what_boto3_alone_can_do_it_does_or_is_asked_for(home, settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    home.config.write_text(_section("profile work", **settings))
    message = home.refusal(AWS_PROFILE="work")
    assert "boto3" in message
    assert "'work'" in message
    frozen = {"work": SimpleNamespace(access_key=ID, secret_key=SECRET, token=TOKEN)}
    fake = _boto3(lambda name: SimpleNamespace(get_frozen_credentials=lambda: frozen[name]))
    monkeypatch.setitem(sys.modules, "boto3", fake)
    keys = home.keys(AWS_PROFILE="work")
    assert (keys.id, keys.secret, keys.token) == (ID, SECRET, TOKEN)
    assert keys.until is not None
    assert timedelta(0) < keys.until - datetime.now(UTC) < timedelta(minutes=10)


def _boto3(credentials: Callable[[str], object]) -> SimpleNamespace:
    def session(profile_name: str) -> SimpleNamespace:
        return SimpleNamespace(get_credentials=lambda: credentials(profile_name))

    return SimpleNamespace(Session=session)


def test_boto3_that_fails_is_refused_without_its_words(home, monkeypatch):
    def fail(name: str) -> object:
        raise LookupError(SECRET)

    home.config.write_text(_section("default", role_arn="arn:1"))
    monkeypatch.setitem(sys.modules, "boto3", _boto3(fail))
    assert "LookupError" in home.refusal()
    monkeypatch.setitem(sys.modules, "boto3", _boto3(lambda name: None))
    home.refusal()


def test_nothing_secret_shows(home):
    home.config.write_text(_static("default") + f"aws_session_token = {TOKEN}\nregion = here\n")
    options = home.options()
    assert options.keys is not None
    shown = f"{options} {options!r} {options.keys()} {options.keys} {options.config}"
    assert "here" in shown
    for hidden in (ID, SECRET, TOKEN):
        assert hidden not in shown


def test_the_environment_of_the_process_is_the_one_looked_at(home, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home.config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home.credentials))
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert s3_options() == Options({"region": "eu-north-1"}, {}, None)
