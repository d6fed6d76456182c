"""Ed25519 signatures (RFC 8032), by libsodium."""

from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

SEED_BYTES = 32


def public_key(seed: bytes) -> bytes:
    """Return the public key of 32 random bytes."""
    return bytes(SigningKey(seed).verify_key)


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature of a message, 64 bytes."""
    return SigningKey(seed).sign(message).signature


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether the owner of a public key signed a message."""
    try:
        VerifyKey(public).verify(message, signature)
    except (CryptoError, ValueError):
        return False
    return True
