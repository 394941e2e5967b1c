"""Who a caller is, by the key in its request.

Only hashes of keys are kept. Keys are random and long, so a fast hash is right; a lookup by the hash of what the caller
sent tells a listener with a clock nothing about the keys that exist, and the comparison that follows takes the same
time for known and unknown ones.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from inferencemesh.auth.tenants import Tenant
from inferencemesh.core.errors import MeshError

_sha256: Final = hashlib.sha256
_same: Final = hmac.compare_digest


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key: its lower-case hex SHA-256, whose it is, and the Unix time from which it is refused."""

    sha256: str
    tenant: Tenant
    expires_at: float | None = None


_NOBODY: Final[tuple[bytes, KeyEntry | None]] = (bytes(32), None)


class KeyRing:
    """All keys of a configuration. A reload builds another one.

    `anonymous` is the tenant of callers without a key, None if they are refused. With `open_to_all` (no tenants are
    configured) everybody is that tenant and keys are not looked at.
    """

    __slots__ = ("_anonymous", "_entries", "_open_to_all")

    def __init__(
        self, entries: Iterable[KeyEntry], *, anonymous: Tenant | None, open_to_all: bool = False
    ) -> None:
        by_digest = ((bytes.fromhex(entry.sha256), entry) for entry in entries)
        self._entries: dict[bytes, tuple[bytes, KeyEntry | None]] = {
            digest: (digest, entry) for digest, entry in by_digest
        }
        self._anonymous = anonymous
        self._open_to_all = open_to_all

    def identify(self, credentials: Sequence[bytes], now: float) -> Tenant:
        """The tenant of a request with these keys (`wire.fields.credentials`) at Unix time `now`.

        Raises:
            MeshError: `invalid_api_key`: no key where one is needed, an unknown or expired one, or two different.

        """
        if self._open_to_all and self._anonymous is not None:
            return self._anonymous
        if not credentials:
            if self._anonymous is None:
                raise _refused("a key is needed; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")
            return self._anonymous
        key = credentials[0]
        if len(credentials) > 1 and any(other != key for other in credentials):
            raise _refused("the request carries two different keys; send one")
        digest = _sha256(key).digest()
        known, entry = self._entries.get(digest, _NOBODY)
        if not _same(known, digest) or entry is None:
            raise _refused("the key is not known here")
        if entry.expires_at is not None and now >= entry.expires_at:
            raise _refused("the key has expired")
        return entry.tenant

    def class_of(self, tenant: Tenant, asked: str | None) -> tuple[str, float]:
        """See `Tenant.class_of`."""
        return tenant.class_of(asked)


def hash_key(key: bytes) -> str:
    """The hash of a key as the configuration holds it."""
    return hashlib.sha256(key).hexdigest()


def _refused(message: str) -> MeshError:
    return MeshError("invalid_api_key", message)
