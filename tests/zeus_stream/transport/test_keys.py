import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.transport import keys

SERVER = keys.new_keys()


def create(directory: Path, name: str, *roles: keys.Role) -> Path:
    return keys.create(directory, name, roles or ("follow",), "alpha", SERVER)


@pytest.fixture(params=[0o022, 0o000], ids=["umask 022", "umask 000"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_secrets_are_their_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    issued = create(tmp_path, "anna")
    keys.server_pair(tmp_path)
    secrets = [path for path in tmp_path.rglob("*") if path.is_file() and "secret" in path.read_text()]
    assert set(secrets) == {issued, tmp_path / "server.secret"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_a_secret_is_0600_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that ever holds it: each call that makes it visible is looked at as it happens."""
    seen: list[int] = []
    link = os.link

    def linked(draft: str, path: Path) -> None:
        seen.append(stat.S_IMODE(Path(draft).stat().st_mode))
        link(draft, path)

    monkeypatch.setattr(os, "link", linked)
    keys.server_pair(tmp_path)
    assert seen == [0o600]


def test_who_is_created_is_allowed_with_its_roles_until_revoked(tmp_path: Path) -> None:
    create(tmp_path, "anna", "follow", "command")
    create(tmp_path, "otto", "query")
    listed, wrong = keys.allowed(tmp_path)
    assert {(who.name, who.roles) for who in listed.values()} == {
        ("anna", frozenset({"follow", "command"})),
        ("otto", frozenset({"query"})),
    }
    assert wrong == ()
    keys.revoke(tmp_path, "anna")
    assert [who.name for who in keys.allowed(tmp_path)[0].values()] == ["otto"]


def test_the_file_that_was_made_lets_in_where_it_is_moved(tmp_path: Path) -> None:
    issued = create(tmp_path / "theirs", "anna")
    here = tmp_path / "ours" / "servers" / "alpha.lan:5600.key"
    here.parent.mkdir(parents=True)
    issued.rename(here)
    ticket = keys.ticket(tmp_path / "ours", "alpha.lan:5600")
    assert (ticket.name, ticket.server, ticket.host) == ("anna", SERVER.public, "alpha")
    assert ticket.public in keys.allowed(tmp_path / "theirs")[0]


def test_whatever_changes_who_is_allowed_is_seen_in_the_fingerprint(tmp_path: Path) -> None:
    seen = [keys.fingerprint(tmp_path)]
    create(tmp_path, "anna")
    seen.append(keys.fingerprint(tmp_path))
    keys.revoke(tmp_path, "anna")
    seen.append(keys.fingerprint(tmp_path))
    create(tmp_path, "anna")
    seen.append(keys.fingerprint(tmp_path))
    assert seen[0] == seen[2] == ()
    assert len(set(seen)) == 3


@pytest.mark.parametrize(
    "text", ["", "public = 5", 'public = "short"\nroles = []', "roles = [", 'roles = ["root"]']
)
def test_a_file_that_is_no_key_lets_nobody_in_and_is_named(tmp_path: Path, text: str) -> None:
    create(tmp_path, "anna")
    (tmp_path / "allowed" / "otto.toml").write_text(text, encoding="utf-8")
    listed, wrong = keys.allowed(tmp_path)
    assert [who.name for who in listed.values()] == ["anna"]
    assert len(wrong) == 1
    assert "otto.toml" in wrong[0]


@pytest.mark.parametrize("name", ["", "..", "a/b", "../anna", "a b", "x" * 65])
def test_a_name_that_could_leave_the_directory_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="could not be a name"):
        create(tmp_path, name)
    with pytest.raises(SettingsError, match="keys list"):
        keys.revoke(tmp_path, name)


def test_a_second_key_of_one_name_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    issued = create(tmp_path, "anna")
    before = issued.read_text(encoding="utf-8")
    with pytest.raises(SettingsError, match="revoke anna"):
        create(tmp_path, "anna")
    assert issued.read_text(encoding="utf-8") == before


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    issued = create(tmp_path, "anna")
    here = tmp_path / "servers" / "alpha:5600.key"
    here.parent.mkdir()
    issued.rename(here)
    here.chmod(0o640)
    with pytest.raises(StorageError, match=f"chmod 600 {here}"):
        keys.ticket(tmp_path, "alpha:5600")


@pytest.mark.parametrize("lacks", ["host", "name", "server", "secret"])
def test_a_file_that_is_no_key_for_another_host_is_a_sentence_without_the_secret(
    tmp_path: Path, lacks: str
) -> None:
    """One without a name or a host ended in a traceback."""
    issued = create(tmp_path, "anna")
    lines = issued.read_text(encoding="utf-8").splitlines()
    here = tmp_path / "servers" / "alpha:5600.key"
    here.parent.mkdir()
    here.touch(0o600)
    here.write_text("\n".join(line for line in lines if not line.startswith(lacks)), encoding="utf-8")
    with pytest.raises(StorageError, match=f"missing required field `{lacks}`") as refused:
        keys.ticket(tmp_path, "alpha:5600")
    assert not any(line.split('"')[1] in str(refused.value) for line in lines if "secret" in line)


def test_a_host_without_a_key_for_another_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="zeus-stream keys create"):
        keys.ticket(tmp_path, "alpha:5600")


def test_a_setup_keeps_its_own_keys(tmp_path: Path) -> None:
    assert keys.server_pair(tmp_path) == keys.server_pair(tmp_path)


def test_roles_are_known_words() -> None:
    assert keys.parse_roles("follow, query") == {"follow", "query"}
    with pytest.raises(SettingsError, match="follow, command, query"):
        keys.parse_roles("follow,root")
