"""Ed25519 signatures as RFC 8032 describes them, section 5.1. Pure.

Python's integers take a time that depends on the key. A key signs a few seals a day in a process of its
owner, so nobody else can measure it; use this for nothing else.
"""

from hashlib import sha512

SEED_BYTES = 32
SIGNATURE_BYTES = 64
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
"""A square root of -1."""
Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T): x = X/Z, y = Y/Z, x y = T/Z."""
_NEUTRAL: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    """Return the sum of two points (section 5.1.4)."""
    e = (a[1] - a[0]) * (b[1] - b[0]) % _P
    f = (a[1] + a[0]) * (b[1] + b[0]) % _P
    g, h = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    x, y, z, t = f - e, h - g, h + g, f + e
    return x * y % _P, z * t % _P, y * z % _P, x * t % _P


def _times(scalar: int, point: Point) -> Point:
    total = _NEUTRAL
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _x_of(y: int, sign: int) -> int | None:
    """Return x of a point with this y (section 5.1.3). None: there is no such point."""
    if y >= _P:
        return None
    squared = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(squared, (_P + 3) // 8, _P)
    if (x * x - squared) % _P:
        x = x * _ROOT % _P
    if (x * x - squared) % _P or (not x and sign):
        return None
    return _P - x if x & 1 != sign else x


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE_X = _x_of(_BASE_Y, 0) or 0
_BASE: Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def _compressed(point: Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _point(compressed: bytes) -> Point | None:
    y = int.from_bytes(compressed, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    x = _x_of(y, sign)
    return None if x is None else (x, y, 1, x * y % _P)


def _secret(seed: bytes) -> tuple[int, bytes]:
    hashed = sha512(seed).digest()
    scalar = int.from_bytes(hashed[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, hashed[32:]


def _number(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little") % _ORDER


def public_key(seed: bytes) -> bytes:
    """Return the public key of 32 random bytes."""
    return _compressed(_times(_secret(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the signature of a message, 64 bytes."""
    scalar, prefix = _secret(seed)
    public, r = _compressed(_times(scalar, _BASE)), _number(prefix, message)
    point = _compressed(_times(r, _BASE))
    s = (r + _number(point, public, message) * scalar) % _ORDER
    return point + s.to_bytes(32, "little")


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether the owner of a public key signed a message."""
    if len(public) != SEED_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key, point = _point(public), _point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if key is None or point is None or s >= _ORDER:
        return False
    wanted = _add(point, _times(_number(signature[:32], public, message), key))
    return _compressed(_times(s, _BASE)) == _compressed(wanted)
