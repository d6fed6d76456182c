import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zeus_stream import paths
from zeus_stream.errors import RefusedError, SettingsError, StorageError


def test_one_directory_replaces_all_places() -> None:
    where = paths.places({"ZEUS_STREAM_DIR": "/tmp/zs", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert {where.publish.parent, where.control.parent, where.archive.parent, where.records.parent} == {
        Path("/tmp/zs")
    }


def test_a_training_process_looks_for_a_root_collector_before_its_own() -> None:
    candidates = paths.publish_candidates({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert candidates == (Path("/run/zeus-stream/publish"), Path("/run/user/7/zeus-stream/publish"))
    assert paths.publish_candidates({"ZEUS_STREAM_DIR": "/tmp/zs"}) == (Path("/tmp/zs/publish"),)


def test_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    where = paths.Places(tmp_path / "run", tmp_path / "state")
    paths.prepare(where)
    assert stat.S_IMODE(where.run.stat().st_mode) == 0o755
    assert stat.S_IMODE(where.state.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_is_a_sentence_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Set ZEUS_STREAM_DIR"):
        paths.prepare(paths.Places(tmp_path / "file" / "run", tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_stranger_s_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, -1)
    with pytest.raises(StorageError, match=r"belongs to user 12345\. Run this as that user"):
        paths.prepare(paths.Places(tmp_path / "run", tmp_path / "state"))
    with pytest.raises(PermissionError, match="belongs to user 12345"):  # it could not read what root wrote
        paths.rewrite(tmp_path / "state" / "budgets.json", "{}")
    assert not list((tmp_path / "state").iterdir())


def test_a_user_without_a_home_learns_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(os, "geteuid", lambda: 4001)
    with pytest.raises(SettingsError, match=r"user 4001 has no home\. Set ZEUS_STREAM_DIR"):
        paths.places({})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_socket_that_a_stranger_may_have_put_under_tmp_is_not_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "tmp"
    ours, theirs = open_to_all / "ours", open_to_all / "theirs"
    for directory in (ours, theirs):
        directory.mkdir(parents=True)
    open_to_all.chmod(0o1777)
    os.chown(theirs, 12345, -1)
    (open_to_all / "link").symlink_to(ours)
    os.lchown(open_to_all / "link", 12345, -1)
    assert paths.trusted(ours / "publish")
    assert not paths.trusted(theirs / "publish")
    assert not paths.trusted(open_to_all / "link" / "publish")
    open_to_all.chmod(0o755)
    assert paths.trusted(theirs / "publish"), "only root could have let that user make it: a service's own"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_a_directory_behind_a_stranger_s_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.lchown(tmp_path / "link", 12345, -1)
    with pytest.raises(StorageError, match="belongs to user 12345"):
        paths.prepare(paths.Places(tmp_path / "link", tmp_path))


def test_an_unknown_group_is_a_setting_to_correct(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no-such-group"):
        paths.prepare(paths.Places(tmp_path, tmp_path), group="no-such-group")


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    assert paths.endpoint(Path("/" + "a" * 106)).startswith("ipc:///a")
    with pytest.raises(SettingsError, match="shorter directory"):
        paths.endpoint(Path("/" + "a" * 107))


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    lock = paths.claim(tmp_path / "collector.lock", "collector")
    with pytest.raises(RefusedError, match=f"process {os.getpid()} already is the collector"):
        paths.claim(tmp_path / "collector.lock", "collector")
    lock.close()
    paths.claim(tmp_path / "collector.lock", "collector").close()


def test_a_killed_owner_owns_nothing(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys; from zeus_stream import paths;"
        "lock = paths.claim(pathlib.Path(sys.argv[1]), 'collector'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    assert done.returncode == -9
    paths.claim(tmp_path / "lock", "collector").close()


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")


def reachable(tmp_path: Path) -> Path:
    """Return a lock's path in a directory that every user may enter, as /run is."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    return tmp_path / "collector.lock"


@contextmanager
def held_by_another_user(path: Path) -> Iterator[int]:
    """Have a process of another user hold a lock; give its pid."""
    with subprocess.Popen(
        ["flock", "--nonblock", path, "sh", "-c", "echo holds; cat"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "holds\n":
            raise PermissionError
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


@as_root
def test_no_other_user_can_hold_a_lock(tmp_path: Path) -> None:
    lock = reachable(tmp_path)
    paths.claim(lock, "collector").close()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    with pytest.raises(PermissionError), held_by_another_user(lock):
        pass
    assert paths.holder(lock) is None


@as_root
def test_root_sees_the_service_of_another_user_in_that_user_s_directory(tmp_path: Path) -> None:
    """A budget that root set said that no analyzer runs: that of the package has a user of its own."""
    lock = reachable(tmp_path)
    lock.write_text("4711")
    lock.chmod(0o600)
    for path in (tmp_path, lock):
        os.chown(path, NOBODY, NOBODY)
    with held_by_another_user(lock):
        assert paths.holder(lock) == 4711
    assert paths.holder(lock) is None


def test_files_made_later_are_for_this_user_alone(tmp_path: Path) -> None:
    paths.prepare(paths.Places(tmp_path, tmp_path))
    (tmp_path / "fresh").touch()
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o600


@pytest.mark.parametrize("planted", ["link", "fifo"])
def test_what_another_user_put_in_the_place_of_a_lock_is_refused(tmp_path: Path, planted: str) -> None:
    lock = tmp_path / "collector.lock"
    if planted == "link":
        (tmp_path / "theirs").write_text("4711")
        lock.symlink_to(tmp_path / "theirs")
    else:
        os.mkfifo(lock, 0o600)
    with pytest.raises(StorageError, match=r"collector\.lock: could not be opened: it is"):
        paths.claim(lock, "collector")
    assert paths.holder(lock) is None
