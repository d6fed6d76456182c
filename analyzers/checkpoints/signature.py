"""Signatures of checkpoints: an analyzer reads its own, and none that came with a file from elsewhere.

The key is a file of the state directory that its owner alone may read. Who can read it can make the analyzer
begin with any state; who has only the archive cannot.
"""

import hmac
from hashlib import sha256
from pathlib import Path

import msgpack
from msgspec import to_builtins
from msgspec.structs import replace

from analyzers.results.rows import CheckpointRow
from zeus_stream.errors import MalformedError
from zeus_stream.own_files import own_secret

FILE = "checkpoint.key"
KEY_BYTES = 32


def load_key(state: Path) -> bytes:
    """Return the key of a state directory; it is made at the first call. Raises StorageError."""
    return own_secret(state / FILE, KEY_BYTES)


def sign(row: CheckpointRow, key: bytes) -> CheckpointRow:
    """Return a checkpoint with its signature."""
    return replace(row, signature=_signature(row, key))


def verify(row: CheckpointRow, key: bytes) -> None:
    """Check that this key signed a checkpoint. Raises MalformedError."""
    if not hmac.compare_digest(row.signature, _signature(row, key)):
        raise MalformedError("its signature is not of this analyzer.")


def _signature(row: CheckpointRow, key: bytes) -> bytes:
    content = to_builtins(replace(row, signature=b""), builtin_types=(bytes,))
    return hmac.digest(key, msgpack.packb(content), sha256)
