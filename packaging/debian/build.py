#!/usr/bin/env python3
"""Build a Debian package of this checkout, which installs below /opt/zeus-stream: ``build.py dist``.

Built by dpkg-deb, for the machine and the Python that build it: `packaging/install.py` makes the environment.
"""

import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFIX = Path("opt/zeus-stream")
DOCS = ("production", "cluster", "web-page", "metrics", "slurm", "troubleshooting")
CONTROL = """Package: zeus-stream
Version: {version}
Architecture: {architecture}
Maintainer: The zeus-stream authors <zeus-stream@localhost>
Depends: {python}
Recommends: systemd
Section: science
Priority: optional
Installed-Size: {kilobytes}
Description: Energy of neural-network training, and the power limit that costs least
 A collector samples the GPUs of each host; an analyzer measures the energy of each
 training step, finds the power limit that costs least, and answers SQL.
"""


def build(dist: Path) -> Path:
    """Build the package, and return its path."""
    version = runpy.run_path(str(ROOT / "zeus_stream" / "package_version.py"))["VERSION"]
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        _fill(tree)
        kilobytes = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
        control = tree / "DEBIAN"
        control.mkdir()
        fields = {
            "version": version,
            "architecture": architecture.strip(),
            "python": f"python3 (>= {sys.version_info.major}.{sys.version_info.minor}),"
            f" python3 (<< {sys.version_info.major}.{sys.version_info.minor + 1})",
            "kilobytes": kilobytes,
        }
        (control / "control").write_text(CONTROL.format(**fields), encoding="utf-8")
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(ROOT / "packaging" / "debian" / script, control / script)
            (control / script).chmod(0o755)
        dist.mkdir(parents=True, exist_ok=True)
        built = dist / f"zeus-stream_{version}_{fields['architecture']}.deb"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zzstd", "--build", tree, built],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return built


def _fill(tree: Path) -> None:
    """Lay out what is installed: the environment, units, users, directories, the manual page, the guides."""
    there = tree / PREFIX
    subprocess.run(["/usr/bin/python3", ROOT / "packaging" / "install.py", there], check=True)
    for each in (*there.glob("bin/*"), there / "pyvenv.cfg"):
        if not each.is_symlink():
            each.write_bytes(re.sub(re.escape(bytes(there)), b"/" + bytes(PREFIX), each.read_bytes()))
    systemd = ROOT / "packaging" / "systemd"
    for path, source in {
        **{f"lib/systemd/system/{unit.name}": unit for unit in sorted(systemd.glob("*.service"))},
        "usr/lib/sysusers.d/zeus-stream.conf": systemd / "sysusers.conf",
        "usr/lib/tmpfiles.d/zeus-stream.conf": systemd / "tmpfiles.conf",
        "usr/share/man/man1/zeus-stream.1": ROOT / "packaging" / "man" / "zeus-stream.1",
        **{f"usr/share/doc/zeus-stream/{name}.md": ROOT / "docs" / "how-to" / f"{name}.md" for name in DOCS},
        "usr/share/doc/zeus-stream/copyright": ROOT / "LICENSE",
    }.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, tree / path)
        (tree / path).chmod(0o644)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/zeus-stream").symlink_to(f"/{PREFIX}/bin/zeus-stream")


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
