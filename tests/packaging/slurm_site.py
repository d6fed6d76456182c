"""A Slurm of one test: controller, two nodes and accounting, with zeus-stream beside them, on this machine.

Slurm's programs are Debian's, unpacked by `make test-slurm`. GPUs are simulated; for Slurm they are devices.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import create_server
from typing import Any

from msgspec import Struct

from tests.directories import QUICK_FILE, short_directory
from tests.environment import environment
from tests.waiting import until

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".slurm"
LIBRARIES = UNPACKED / "usr" / "lib" / "x86_64-linux-gnu"
SCRIPTS = ROOT / "packaging" / "slurm"
NODES = ("n1", "n2")
INSTALLED = "/etc/slurm/zeus-stream"
"""Where the page has the scripts."""
SLURM = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthInfo=socket={run}/munge/socket
SlurmctldPort={controller}
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd-%n.log
PluginDir={libraries}/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
GresTypes=gpu
ReturnToService=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounting}
AccountingStoragePass={run}/munge/socket
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n1} CPUs=2 Gres=gpu:2
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={n2} CPUs=2 Gres=gpu:2
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""
ACCOUNTING = """
AuthInfo=socket={run}/munge/socket
DbdHost=localhost
DbdPort={accounting}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=slurm
LogFile={run}/slurmdbd.log
PidFile={run}/slurmdbd.pid
PluginDir={libraries}/slurm-wlm
"""


def free_ports(names: tuple[str, ...]) -> dict[str, int]:
    """Return a port for each name. Another program may take one before its server does."""
    with ExitStack() as held:
        servers = [held.enter_context(create_server(("127.0.0.1", 0))) for _ in names]
        return {name: server.getsockname()[1] for name, server in zip(names, servers, strict=True)}


class SlurmSite(Struct, frozen=True):
    """A cluster that runs."""

    directory: Path

    @property
    def output(self) -> Path:
        """Where jobs run and write."""
        return self.directory / "home"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of Slurm's programs."""
        return {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ZEUS_", "SLURM", "TMPDIR"))
            },
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{LIBRARIES}/slurm-wlm:{LIBRARIES}",
            "PATH": f"{UNPACKED}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }

    def run(self, *command: str) -> str:
        """Run a program of Slurm, and return what it prints."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.output,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *arguments: str, user: str | None = "nobody") -> str:
        """Submit a job, and return its number."""
        who = () if user is None else (f"--uid={user}",)
        return self.run("sbatch", "--parsable", *who, *arguments).strip()

    def wait_for(self, job: str) -> None:
        """Wait until a job is over, its epilogs included."""
        until(lambda: not self.run("squeue", "--noheader", "--job", job))

    def zeus(self, *arguments: str, node: str = "analyzer") -> str:
        """Run a command of ours where the analyzer is, or on a node, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "zeus_stream", *arguments],
            env=environment(self.directory / node, COLUMNS="120"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the analyzer's answer."""
        rows: list[dict[str, Any]] = json.loads(self.zeus("sql", query, "--json"))
        return rows

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")


@contextmanager
def slurm_site(page: str) -> Iterator[SlurmSite]:
    """Run a cluster whose ``slurm.conf`` ends with the lines of a page, until the end of the block."""
    with short_directory() as directory, ExitStack() as stack:
        site = SlurmSite(directory)
        _lay_out(site, page)
        stack.callback(_end, directory)
        _start_zeus(site, stack)
        _start_slurm(site, stack)
        yield site


def _lay_out(site: SlurmSite, page: str) -> None:
    run = site.directory
    run.chmod(0o755)
    for name in (
        "munge",
        "state",
        "home",
        "analyzer",
        *NODES,
        *(f"spool/{node}" for node in NODES),
        "programs",
    ):
        (run / name).mkdir(parents=True)
    site.output.chmod(0o777)
    for each in ("slurmctld", "slurmd", "slurmstepd"):  # they ask their own name what they are
        (run / "programs" / each).symlink_to(UNPACKED / "usr" / "sbin" / f"{each}-wlm")
    ports = free_ports(("controller", "accounting", "database", *NODES))
    known = {"run": run, "libraries": LIBRARIES, **ports}
    (run / "slurm.conf").write_text(SLURM.format(**known) + page.replace(INSTALLED, f"{run}/scripts"))
    (run / "slurmdbd.conf").write_text(ACCOUNTING.format(**known))
    (run / "slurmdbd.conf").chmod(0o600)
    for number in range(2 * len(NODES)):
        os.mknod(run / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    lines = (
        f"NodeName={node} Name=gpu File={run}/gpu[{2 * i}-{2 * i + 1}]\n" for i, node in enumerate(NODES)
    )
    (run / "gres.conf").write_text("".join(lines))
    shutil.copytree(SCRIPTS, run / "scripts")
    own = {
        "ZEUS_STREAM": f"'{run}/zeus-stream'",
        "SCONTROL": f"{UNPACKED}/usr/bin/scontrol",
        "SACCTMGR": f"{UNPACKED}/usr/bin/sacctmgr",
        "ZEUS_STREAM_DIR": f"{run}/${{SLURMD_NODENAME:-analyzer}}",
        **{name: site.environment[name] for name in ("SLURM_CONF", "LD_LIBRARY_PATH")},
    }
    with (run / "scripts" / "site").open("a") as settings:
        settings.writelines(f"export {name}={value}\n" for name, value in own.items())
    command = run / "zeus-stream"
    command.write_text(
        f'#!/bin/sh\nunset LD_LIBRARY_PATH\nPYTHONPATH={ROOT} exec {sys.executable} -m zeus_stream "$@"\n'
    )
    command.chmod(0o755)


def _start_zeus(site: SlurmSite, stack: ExitStack) -> None:
    """Start a collector on each node, and an analyzer of both."""
    follow = ",".join(str(site.directory / node) for node in NODES)
    quick = (*QUICK_FILE, "--warmup-steps", "1", "--profile-steps", "20")
    commands = {
        node: ("collect", "--host", node, "--device", f"simulated:v100x2,seed={index}")
        for index, node in enumerate(NODES, 1)
    } | {"analyzer": ("analyze", "--follow", follow, *quick)}
    for name, command in commands.items():
        said = stack.enter_context((site.directory / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", "zeus_stream", *command],
            env=environment(site.directory / name), stdin=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)
    until((site.directory / "analyzer" / "query").exists)
    until(lambda: site.sql("SELECT count(*) AS n FROM gpus WHERE NOT of_host(gpu)") == [{"n": 4}])


def _start_slurm(site: SlurmSite, stack: ExitStack) -> None:
    run, sbin = site.directory, UNPACKED / "usr" / "sbin"
    (run / "munged.key").write_bytes(os.urandom(1024))
    (run / "munged.key").chmod(0o600)
    own = [f"--{name}-file={run}/munged.{name}" for name in ("key", "pid", "log", "seed")]
    site.run(f"{sbin}/munged", "--force", f"--socket={run}/munge/socket", *own)
    own = ["--no-defaults", f"--basedir={UNPACKED}/usr", f"--datadir={run}/database", "--user=root"]
    new = ("--skip-test-db", "--auth-root-authentication-method=normal", "--force")
    site.run("mariadb-install-db", *own, *new)
    [port] = re.findall(r"StoragePort=(\d+)", (run / "slurmdbd.conf").read_text())
    served = (f"--socket={run}/database.sock", f"--port={port}", f"--pid-file={run}/mariadbd.pid")
    database = subprocess.Popen(
        [f"{sbin}/mariadbd", *own, "--bind-address=127.0.0.1", *served],
        env=site.environment,
        stdin=subprocess.DEVNULL,
        stderr=stack.enter_context((run / "mariadbd.log").open("ab")),
    )
    stack.callback(database.wait)
    stack.callback(database.terminate)
    until(lambda: "ready for connections" in site.log("mariadbd"))
    site.run(f"{sbin}/slurmdbd")
    until(lambda: (run / "slurmdbd.log").exists() and " started" in site.log("slurmdbd"))
    site.run("sacctmgr", "--immediate", "add", "cluster", "test")
    site.run(f"{run}/programs/slurmctld")
    for node in NODES:
        site.run(f"{run}/programs/slurmd", "-N", node, "-d", f"{run}/programs/slurmstepd")
    until(lambda: _idle(site))


def _idle(site: SlurmSite) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"],
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split() == ["idle", "idle"]


def _end(directory: Path) -> None:
    """End Slurm's daemons, which have left this process's tree."""
    for path in directory.glob("*.pid"):
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(path.read_text()), signal.SIGKILL)
