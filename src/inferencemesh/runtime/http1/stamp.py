"""The fields that every response carries, rendered once per second."""

from __future__ import annotations

import time
from email.utils import formatdate

_second = 0
_fields = b""


def common_fields() -> bytes:
    """`date` and `server`."""
    global _second, _fields
    second = int(time.time())
    if second != _second:
        _second = second
        _fields = b"date: %b\r\nserver: inferencemesh\r\n" % formatdate(second, usegmt=True).encode()
    return _fields
