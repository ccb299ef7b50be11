"""Which credentials, region and endpoint a store is opened with, and that no key is shown.

botocore resolves profiles: those tests are skipped where it is not installed.
"""

import logging
import os
import shlex
import sys
from datetime import UTC, datetime, timedelta

import pytest

from standfast import Store
from standfast.errors import BadOption
from standfast.store.remote.credentials import ENDPOINT, Options, s3_options
from tests.store.remote.places import shown

ID, SECRET, TOKEN = "AKIDOFNOBODY", "the-secret-itself", "the-token-itself"
KEYS = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET}
WEB_IDENTITY = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere", "AWS_ROLE_ARN": "arn:aws:iam::1:role/a"}

STATIC = f"aws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\n"


class Home:
    """The two files of the AWS tools, and the environment, which has nothing else of AWS."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        self.config, self.credentials = folder / "config", folder / "credentials"
        monkeypatch.setenv("AWS_CONFIG_FILE", str(self.config))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(self.credentials))

    def options(self, **environ):
        with self.monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            return s3_options()

    def keys(self, **environ):
        found = self.options(**environ).credential_provider()
        assert timedelta(0) < found["expires_at"] - datetime.now(UTC) < timedelta(minutes=10)
        return found["access_key_id"], found["secret_access_key"], found["token"]

    def refusal(self, **environ):
        with pytest.raises(BadOption) as caught:
            self.options(**environ)
        assert not any(hidden in shown(caught.value) for hidden in (ID, SECRET, TOKEN))
        return str(caught.value)

    def process(self, code, **settings):
        """A profile with a `credential_process`, which counts how often it runs."""
        program = self.folder / "keys.py"
        program.write_text(
            f"import sys\nopen({str(self.folder / 'runs')!r}, 'a').write('1')\n{code}"
        )
        command = shlex.join([sys.executable, str(program), "$HOME", "a b"])
        settings = {"credential_process": command, **settings}
        lines = (f"{name} = {value}\n" for name, value in settings.items())
        self.config.write_text("[default]\n" + "".join(lines))

    @property
    def runs(self):
        return len((self.folder / "runs").read_text())


@pytest.fixture
def home(tmp_path, monkeypatch):
    return Home(tmp_path, monkeypatch)


@pytest.fixture
def botocore():
    pytest.importorskip("botocore.session")


def prints(key=ID, minutes=None):
    """A program that prints keys; they are valid for so many minutes."""
    until = minutes and (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    said = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": SECRET, "SessionToken": TOKEN}
    return f"import json\nprint(json.dumps({said | ({'Expiration': until} if until else {})}))\n"


# The environment


def test_without_anything_obstore_finds_the_credentials(home):
    home.credentials.write_text(f"[other]\n{STATIC}")
    assert home.options() == Options({}, {}, None)


@pytest.mark.parametrize(
    "environ", [KEYS, WEB_IDENTITY, {"AWS_SKIP_SIGNATURE": "true"}], ids=sorted
)
def test_the_environment_takes_precedence_over_the_default_profile(home, environ, monkeypatch):
    home.credentials.write_text(f"[default]\n{STATIC}")
    assert home.options(**environ).credential_provider is None
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert home.options(**environ) == Options({}, {}, None)


def test_a_key_without_its_secret_is_refused(home):
    assert "AWS_SECRET_ACCESS_KEY" in home.refusal(AWS_ACCESS_KEY_ID=ID)


@pytest.mark.parametrize("name", ["AWS_PROFILE", "AWS_DEFAULT_PROFILE", None])
def test_a_profile_without_boto3_says_what_to_do(home, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    home.credentials.write_text(f"[default]\n{STATIC}")
    message = home.refusal(**{name: "work"} if name else {})
    assert all(word in message for word in ("boto3", "AWS_ACCESS_KEY_ID", "work" if name else ""))


def test_a_default_profile_is_found_at_home(tmp_path, monkeypatch, home):
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    home.options()
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[profile default]\nregion = here\n")
    assert "default" in home.refusal()


def test_a_file_that_cannot_be_read_is_named(home):
    home.config.mkdir()
    assert str(home.config) in home.refusal()


@pytest.mark.parametrize(
    ("environ", "config"),
    [
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, {"region": "a"}),
        ({"AWS_DEFAULT_REGION": "b"}, {"region": "b"}),
        (
            {"AWS_ENDPOINT_URL": "https://all/"},
            {ENDPOINT: "https://all", "region": "us-east-1"},
        ),
        (
            {
                "AWS_ENDPOINT_URL": "https://all",
                "AWS_ENDPOINT_URL_S3": "http://s3",
                "AWS_REGION": "a",
            },
            {ENDPOINT: "http://s3", "region": "a"},
        ),
        (
            {"AWS_ENDPOINT_URL": "https://all", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"},
            {ENDPOINT: "https://s3.us-east-1.amazonaws.com", "region": "us-east-1"},
        ),
    ],
    ids=["region", "default region", "all", "s3", "ignored"],
)
def test_region_and_endpoint_of_the_environment(home, environ, config):
    options = home.options(**environ)
    assert options.config == config
    endpoint = config.get(ENDPOINT)
    assert options.client_options == ({"allow_http": endpoint == "http://s3"} if endpoint else {})


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
def test_an_endpoint_that_is_no_url_or_has_a_secret_is_refused(home, endpoint):
    assert "endpoint" in home.refusal(AWS_ENDPOINT_URL=endpoint)


def test_the_endpoint_is_the_one_that_obstore_uses(home, monkeypatch):
    from obstore.store import S3Store

    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "https://127.0.0.1:2")
    options = home.options(AWS_ENDPOINT_URL_S3="http://127.0.0.1:1", AWS_SKIP_SIGNATURE="true")
    retry = {"max_retries": 0}
    config = options.config | {"skip_signature": "true"}
    opened = S3Store(
        "bucket", config=config, client_options=options.client_options, retry_config=retry
    )
    with pytest.raises(Exception, match=r"http://127\.0\.0\.1:1/bucket"):
        opened.head("name")


# Profiles

ROLE = "role_arn = arn:aws:iam::1:role/a\nweb_identity_token_file = /nowhere\n"
FILES = f"""
[default]
region = of-the-profile
endpoint_url = https://of-the-profile
services = mine
aws_access_key_id = AKIDINCONFIG
aws_secret_access_key = {SECRET}
[profile work]
endpoint_url = http://of-work
aws_access_key_id = AKIDWORK
aws_secret_access_key = {SECRET}
[profile ignoring]
endpoint_url = https://ignored
ignore_configured_endpoint_urls = true
[profile role]
{ROLE}
[profile sso]
sso_start_url = https://nowhere
sso_region = here
sso_account_id = 1
sso_role_name = r
[profile lost]
services = none
[profile half]
aws_access_key_id = {ID}
[services mine]
s3 =
  endpoint_url = https://of-the-service
  other = 1
"""


def test_a_profile_gives_its_keys(home, botocore):
    home.config.write_text(FILES)
    assert home.keys()[0] == "AKIDINCONFIG"
    home.credentials.write_text(f"[default]\n{STATIC}aws_session_token = {TOKEN}\n")
    assert home.keys() == (ID, SECRET, TOKEN)
    assert home.keys(AWS_DEFAULT_PROFILE="work")[0] == "AKIDWORK"
    assert home.keys(AWS_PROFILE="work", AWS_DEFAULT_PROFILE="default")[0] == "AKIDWORK"
    assert home.options(AWS_PROFILE="ignoring").credential_provider is None


@pytest.mark.parametrize(
    ("environ", "region", "endpoint"),
    [
        ({}, "of-the-profile", "https://of-the-service"),
        (KEYS, "of-the-profile", "https://of-the-service"),
        ({"AWS_REGION": "a"}, "a", "https://of-the-service"),
        ({"AWS_ENDPOINT_URL": "https://all"}, "of-the-profile", "https://all"),
        ({"AWS_PROFILE": "work"}, "us-east-1", "http://of-work"),
        ({"AWS_PROFILE": "work", **KEYS}, "us-east-1", "http://of-work"),
        ({"AWS_PROFILE": "ignoring"}, None, None),
    ],
    ids=["service", "keys", "region", "endpoint", "work", "work with keys", "ignored"],
)
def test_region_and_endpoint_of_a_profile(home, botocore, environ, region, endpoint):
    home.config.write_text(FILES)
    options = home.options(**environ)
    assert (options.config.get("region"), options.config.get(ENDPOINT)) == (region, endpoint)
    if "AWS_ACCESS_KEY_ID" in environ:
        assert options.credential_provider is None


def test_a_role_takes_precedence_over_a_web_identity_and_is_resolved_by_botocore(home, botocore):
    home.config.write_text(FILES)
    assert home.options(AWS_PROFILE="work", **WEB_IDENTITY).credential_provider is None
    provider = home.options(AWS_PROFILE="role", **WEB_IDENTITY).credential_provider
    with pytest.raises(BadOption, match="FileNotFoundError"):
        provider()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("wrok", "ProfileNotFound"), ("half", "PartialCredentialsError"), ("lost", "KeyError")],
)
def test_a_profile_that_cannot_be_used_is_named_with_its_files(home, botocore, name, problem):
    home.config.write_text(FILES)
    message = home.refusal(AWS_PROFILE=name)
    assert all(word in message for word in (f"'{name}'", str(home.config), problem))


@pytest.mark.parametrize("content", [f"[default]\n{SECRET}\n", f"[default]\n{SECRET} = \xff\n"])
def test_a_file_that_cannot_be_parsed_is_named_and_not_shown(home, botocore, content):
    home.credentials.write_bytes(content.encode("latin-1"))
    assert str(home.credentials) in home.refusal()


@pytest.mark.parametrize(
    ("minutes", "runs"), [(None, 1), (60, 1), (9, 3)], ids=["for ever", "an hour", "nine minutes"]
)
def test_a_process_runs_again_before_its_keys_expire(home, botocore, minutes, runs):
    home.process(f"assert sys.argv[1:] == ['$HOME', 'a b']\n{prints(minutes=minutes)}")
    provider = home.options().credential_provider
    for _ in range(2):
        assert provider()["secret_access_key"] == SECRET
    assert home.runs == runs


@pytest.mark.parametrize(
    "code",
    [f"sys.exit({SECRET!r})", f"print({SECRET!r})", "print('{}')", prints().replace("Id", "Ed")],
    ids=["fails", "noise", "nothing", "no key"],
)
def test_a_process_that_gives_no_keys_is_refused_without_its_words(home, botocore, code, capfd):
    home.process(code)
    assert "'default'" in home.refusal()
    assert capfd.readouterr() == ("", "")


def test_keys_that_cannot_be_renewed_are_refused_without_the_words_of_the_process(
    home, botocore, caplog
):
    caplog.set_level(logging.DEBUG)
    home.process(prints(minutes=9))
    options = home.options()
    home.process(f"sys.exit({SECRET!r})")
    with pytest.raises(BadOption, match="'default'") as caught:
        options.credential_provider()
    text = f"{options!r} {caplog.text} {shown(caught.value)}"
    assert not any(hidden in text for hidden in (ID, SECRET, TOKEN))


def test_a_store_opens_with_a_profile_alone(bucket_url, tmp_path, monkeypatch, botocore):
    """The real server accepts the keys of a process; the region and endpoint are the profile's."""
    keys = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    home = Home(tmp_path, monkeypatch)
    home.process(
        prints(keys["AWS_ACCESS_KEY_ID"], 60)
        .replace(SECRET, keys["AWS_SECRET_ACCESS_KEY"])
        .replace(f", 'SessionToken': '{TOKEN}'", ""),
        region=keys["AWS_REGION"],
        endpoint_url=keys["AWS_ENDPOINT_URL"],
    )
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(1, {"a": 1})
        assert run.load() == {"a": 1}
    assert home.runs == 1
