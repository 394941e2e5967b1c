"""Bytes of backends' answers that the gateway holds: one bound for all, and bounded unfolding (contract A11)."""

from __future__ import annotations

import zlib

COMPRESSIONS = frozenset({b"gzip", b"x-gzip", b"deflate"})

# Of one read: a read is at most 256 KiB, and text unfolds to some ten times that.
MAX_INFLATED_BYTES = 16 * 1024 * 1024


class HeldBudget:
    """How many bytes of plain answers may be held over the process, whoever holds them.

    Beyond it an answer is not refused: it is passed on as it comes, under back-pressure, and can then no longer
    become a clean 502 if its backend dies in the middle.
    """

    __slots__ = ("_by", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._by: dict[object, int] = {}

    def take(self, holder: object, size: int) -> bool:
        """Hold `size` bytes more for `holder`, or return False."""
        if self.used + size > self.limit:
            return False
        self.used += size
        self._by[holder] = self._by.get(holder, 0) + size
        return True

    def give_back(self, holder: object) -> None:
        """`holder` has nothing left. Idempotent."""
        if self._by:
            self.used -= self._by.pop(holder, 0)


class Inflater:
    """Decodes a body that was compressed though identity was asked for (H2).

    Raises zlib.error for a broken one, and ValueError for one that unfolds beyond all measure.
    """

    __slots__ = ("_decoder", "_wbits")

    def __init__(self, encoding: bytes) -> None:
        self._wbits = 47 if encoding != b"deflate" else 15
        self._decoder = zlib.decompressobj(wbits=self._wbits)

    def feed(self, data: bytes) -> bytes:
        """Take what a read brought; further members of a gzip body follow on the first."""
        pieces: list[bytes] = []
        room = MAX_INFLATED_BYTES
        while data:
            if self._decoder.eof:
                self._decoder = zlib.decompressobj(wbits=self._wbits)
            piece = self._decoder.decompress(data, room)
            room -= len(piece)
            if self._decoder.unconsumed_tail or room <= 0:
                raise ValueError("it unfolds too far")
            pieces.append(piece)
            data = self._decoder.unused_data
        return b"".join(pieces)

    @property
    def whole(self) -> bool:
        """Whether the last member has come to its end."""
        return self._decoder.eof
