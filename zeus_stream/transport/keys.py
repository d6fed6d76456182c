"""Keys that let one host in at another: who may do what, as files.

    keys/server.secret           0600  the secret key of this setup's TCP sockets
    keys/allowed/NAME.toml       0600  who NAME is, and its roles; without the file it is not let in
    keys/issued/NAME.key         0600  what lets NAME in: to be moved to the host that uses it, as
    keys/servers/HOST:PORT.key   0600  what lets this host in at HOST:PORT

Keys are Curve25519, in Z85 (40 characters, none of which needs an escape in TOML).
"""

import errno
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias, TypeVar, cast, get_args

import zmq
from msgspec import Meta, Struct, convert
from msgspec.structs import asdict, replace
from zmq.utils import z85

from zeus_stream.errors import SettingsError, StorageError
from zeus_stream.own_files import write_new

Role: TypeAlias = Literal["follow", "command", "query"]
"""Receive what a collector logs; set power limits and answer scripts; ask an analyzer SQL."""
ROLES: tuple[Role, ...] = get_args(Role)
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR}
"""Errors that say nothing of a file: it may be read later."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
Z85 = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z")]


class Pair(Struct, frozen=True):
    """The file of a setup's own keys."""

    public: Z85
    secret: Z85


P = TypeVar("P", bound=Pair)


class Allowed(Struct, frozen=True):
    """Somebody who is let in."""

    public: Z85
    roles: frozenset[Role]
    name: str = ""
    """That of its file."""


class Ticket(Pair, frozen=True):
    """The key with which this host connects to another: the file that was made there."""

    name: str
    server: Z85
    """Public key of the host that is spoken to."""
    host: str
    """The one host that it may speak for."""
    path: Path = Path()
    """Of the file, here."""


def new_keys() -> Pair:
    """Return a new pair of CURVE keys."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def raw_key(text: str) -> bytes:
    """Return the 32 bytes of a key."""
    return z85.decode(text)


def text_key(raw: bytes) -> str:
    """Return the text of a key of 32 bytes."""
    return z85.encode(raw).decode()


def parse_roles(text: str) -> frozenset[Role]:
    """Return the roles in ``ROLE,ROLE``. Raises SettingsError."""
    roles = {word.strip() for word in text.split(",")}
    if not roles <= set(ROLES):
        raise SettingsError(f"roles: {text!r} could not be roles: expected some of {', '.join(ROLES)}.")
    return cast("frozenset[Role]", frozenset(roles))


def create(keys: Path, name: str, roles: Iterable[Role], host: str, server: Pair) -> Path:
    """Let ``name`` in, and return the file that it needs. Raises SettingsError and StorageError."""
    if not _NAME.fullmatch(name):
        raise SettingsError(f"keys: {name!r} could not be a name: use up to 64 letters, digits, and . _ -")
    pair = new_keys()
    issued = keys / "issued" / f"{name}.key"
    fields = {**asdict(pair), "name": name, "server": server.public, "host": host}
    ticket = "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    quoted = ", ".join(f'"{role}"' for role in sorted(roles))
    listed = f'public = "{pair.public}"\nroles = [{quoted}]\n'
    try:
        write_new(keys / "allowed" / f"{name}.toml", listed.encode())
        issued.unlink(missing_ok=True)  # of a namesake that was revoked
        write_new(issued, ticket.encode())
    except FileExistsError as wrong:
        raise SettingsError(
            f"keys: could not create {name}: it has a key already."
            f" Choose another name, or `zeus-stream keys revoke {name}` first."
        ) from wrong
    except OSError as wrong:
        raise _storage(keys, "written", wrong) from wrong
    return issued


def revoke(keys: Path, name: str) -> None:
    """Let ``name`` in no more. Raises SettingsError when there is none, StorageError."""
    listed = {path.stem: path for path in (keys / "allowed").glob("*.toml")}
    if name not in listed:
        raise SettingsError(
            f"keys: could not revoke {name!r}: there is no such key. `zeus-stream keys list` names them."
        )
    try:
        listed[name].unlink()
        (keys / "issued" / f"{name}.key").unlink(missing_ok=True)
    except OSError as wrong:
        raise _storage(keys, "changed", wrong) from wrong


def allowed(keys: Path) -> tuple[Mapping[str, Allowed], tuple[str, ...]]:
    """Return who is let in, by public key, and a sentence for each file that could not be understood.

    Raises StorageError: then nobody can tell who is let in.
    """
    found: dict[str, Allowed] = {}
    wrong: list[str] = []
    try:
        # Not Path.glob: it may take a folder that cannot be opened for an empty one.
        with os.scandir(keys / "allowed") as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.name.endswith(".toml"))
    except FileNotFoundError:
        return MappingProxyType({}), ()
    except OSError as error:
        raise _storage(keys, "read", error) from error
    for path in paths:
        try:
            listed = convert(tomllib.loads(path.read_text(encoding="utf-8")), Allowed)
            if listed.public in found:
                raise ValueError("another file has its key")  # noqa: TRY301  (reported below, with the others)
        except FileNotFoundError:
            continue  # revoked this moment
        except OSError as error:
            if error.errno in _PASSING:
                raise _storage(keys, "read", error) from error
            wrong.append(
                f"{path}: could not be read: {error.strerror}. Its key is not let in. Mend or remove it."
            )
        except ValueError as error:
            wrong.append(f"{path}: could not be used: {error}. Mend or remove it: its key is not let in.")
        else:
            found[listed.public] = replace(listed, name=path.stem)
    return MappingProxyType(found), tuple(wrong)


def fingerprint(keys: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what changes whenever `allowed` may. Raises StorageError."""
    try:
        with os.scandir(keys / "allowed") as entries:
            stats = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:
        return ()  # none was ever made, or one was removed this moment: the next look sees it
    except OSError as wrong:
        raise _storage(keys, "read", wrong) from wrong
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_ino) for name, stat in stats))


def server_pair(keys: Path) -> Pair:
    """Return the keys of this setup's own sockets; made at the first call. Raises StorageError."""
    path = keys / "server.secret"
    if not path.exists():
        pair = new_keys()
        try:
            write_new(path, f'public = "{pair.public}"\nsecret = "{pair.secret}"\n'.encode())
        except FileExistsError:
            pass  # another process of this setup was faster: its keys are the setup's
        except OSError as wrong:
            raise _storage(keys, "written", wrong) from wrong
    return _secret(path, Pair)


def ticket(keys: Path, address: str) -> Ticket:
    """Return what lets this host in at ``HOST:PORT``. Raises SettingsError and StorageError."""
    path = keys / "servers" / f"{address}.key"
    if not path.exists():
        raise SettingsError(
            f"{address}: could not be spoken to: there is no key for it. Make one on that host with"
            f" `zeus-stream keys create NAME`, and move the file that this names to {path}."
        )
    return replace(_secret(path, Ticket), path=path)


def _secret(path: Path, kind: type[P]) -> P:
    """Return the content of a file with a secret key, which its owner alone may read. Raises StorageError."""
    try:
        if path.stat().st_mode & 0o077:
            raise StorageError(f"{path}: could not be used: others may read this secret. chmod 600 {path}")
        return convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except (OSError, ValueError) as wrong:
        raise StorageError(
            f"{path}: could not be read: {wrong}. Move a key that was made for this there."
        ) from wrong


def _storage(keys: Path, could_not: str, wrong: OSError) -> StorageError:
    return StorageError(
        f"{keys}: could not be {could_not}: {wrong.strerror}. Run this as the user of the collector."
    )
