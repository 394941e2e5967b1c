"""What a backend's answer says about when to ask it again (O14)."""

from __future__ import annotations

import pytest

from inferencemesh.runtime.verdict import retry_after_s

DATE = (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b"7", 7.0),
        (b"86400", 60.0),
        (b"99999999999999999999", 60.0),
        (b"Sun, 06 Nov 1994 08:49:49 GMT", 12.0),
        (b"Sunday, 06-Nov-94 08:49:49 GMT", 12.0),
        (b"Sun, 06 Nov 1994 08:49:00 GMT", 0.0),  # past
        (b"Mon, 07 Nov 1994 08:49:37 GMT", 60.0),
        (b"Sun, 06 Nov 1994 08:49:49 +0100", 0.0),
        (b"-3", 0.0),
        (b"soon", 0.0),
        (b"1.5", 0.0),
        (b"\xff\xfe", 0.0),
        (b"", 0.0),
    ],
)
def test_seconds_or_a_date_by_the_backends_own_clock(value: bytes, seconds: float) -> None:
    assert retry_after_s([(b"x", b"y"), (b"retry-after", value), DATE]) == seconds


def test_a_date_without_a_date_to_count_from_is_ignored() -> None:
    assert retry_after_s([(b"retry-after", b"Sun, 06 Nov 2094 08:49:49 GMT")]) == 0.0
    assert retry_after_s([(b"retry-after", b"Sun, 06 Nov 2094 08:49:49 GMT"), (b"date", b"today")]) == 0.0
    assert retry_after_s([DATE]) == 0.0
