"""Files that another user made in a folder where both may write."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.log import boot_mark
from collectors.log.boot_mark import BootMark
from zeus_stream.own_files import open_own, read_own

PATIENCE_S = 60.0


def test_a_file_of_ours_is_opened_truncated_and_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "file"
    opened = open_own(file, os.O_WRONLY | os.O_CREAT)
    os.write(opened, b"content")
    os.close(opened)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_own(file, 3) == b"con"
    os.close(open_own(file, os.O_WRONLY | os.O_TRUNC))
    assert read_own(file, 10) == b""


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        ("link", "it is a link"),
        ("fifo", "it is no regular file"),
        ("directory", "it is no regular file"),
        ("open to others", "other users can read or write it"),
    ],
)
def test_what_is_no_file_of_ours_alone_is_refused_and_keeps_its_content(
    tmp_path: Path, planted: str, why: str
) -> None:
    file, theirs = tmp_path / "file", tmp_path / "theirs"
    theirs.write_text("content")
    match planted:
        case "link":
            file.symlink_to(theirs)
        case "fifo":
            os.mkfifo(file, 0o600)
        case "directory":
            file.mkdir(0o700)
        case _:
            file = theirs
            theirs.chmod(0o644)
    flags = os.O_RDONLY if planted == "directory" else os.O_RDWR | os.O_TRUNC
    with pytest.raises(PermissionError, match=why):
        open_own(file, flags)
    assert theirs.read_text() == "content"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o600)
    os.chown(file, 65_534, 65_534)
    with pytest.raises(PermissionError, match="it belongs to user 65534"):
        open_own(file)


def test_a_fifo_and_a_sparse_file_among_the_boot_marks_stop_no_collector(tmp_path: Path) -> None:
    """A collector of root hung for ever at the one, and read the other into its memory."""
    name = f"{boot_mark.PREFIX}{os.geteuid()}-"
    (tmp_path / "log").touch()
    os.mkfifo(tmp_path / f"{name}fifo", 0o600)
    with (tmp_path / f"{name}sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    code = (
        "import sys; from pathlib import Path; from collectors.log.boot_mark import BootMark\n"
        "BootMark(Path(sys.argv[1]) / 'log', Path(sys.argv[1])).put(b'end')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=PATIENCE_S)
    assert BootMark(tmp_path / "log", tmp_path).read().startswith(b"end")
