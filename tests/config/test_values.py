from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencemesh.config import values


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10s", 10.0),
        ("250ms", 0.25),
        ("1m", 60.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("0s", 0.0),
        (" 3s ", 3.0),
        ("5", 5.0),
        ("0.5", 0.5),
        (5, 5.0),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(written: object, seconds: float):
    assert values.read_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "s", "10 s", "10S", "1x", "-1s", -1, "1s2", "1:30", True, None, [], float("nan"), float("inf"),
     "\u0661s", "367d", 10**400, "9" * 400 + "s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(written: object):
    with pytest.raises(ValueError, match=r"duration|negative"):
        values.read_duration(written)


@given(st.one_of(st.integers(0, 10**9).map(lambda ms: ms / 1000), st.floats(0, 366 * 86400.0)))
def test_a_shown_duration_reads_back_exactly(seconds: float):
    assert values.read_duration(values.show_duration(seconds)) == seconds


@pytest.mark.parametrize(("seconds", "shown"), [(300.0, "300s"), (0.25, "250ms"), (0.0, "0s"), (1.5, "1.5s")])
def test_durations_are_shown_as_people_write_them(seconds: float, shown: str):
    assert values.show_duration(seconds) == shown


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("32KiB", 32 * 1024),
        ("256MiB", 256 << 20),
        ("1GiB", 1 << 30),
        ("10MB", 10_000_000),
        ("1.5 KiB", 1536),
        ("512B", 512),
        ("77", 77),
        (77, 77),
        (0, 0),
    ],
)
def test_a_size_is_read_as_bytes(written: object, size_bytes: int):
    assert values.read_size(written) == size_bytes


@pytest.mark.parametrize(
    "written",
    ["", "KiB", "1k", "1 M", "-1", -1, 1.5, "1.0001KiB", True, None, "1e3", float("nan"), "9EiB", 1 << 70],
)
def test_what_is_no_size_is_refused(written: object):
    with pytest.raises(ValueError, match=r"size|bytes"):
        values.read_size(written)


@given(st.integers(0, (1 << 60) - 1))
def test_a_shown_size_reads_back_exactly(size_bytes: int):
    assert values.read_size(values.show_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2027-12-31", datetime(2028, 1, 1, tzinfo=UTC)),  # the day itself is included
        ("2027-12-31T18:00:00Z", datetime(2027, 12, 31, 18, tzinfo=UTC)),
        ("2027-12-31T18:00:00+02:00", datetime(2027, 12, 31, 16, tzinfo=UTC)),
        ("2027-12-31 18:00", datetime(2027, 12, 31, 18, tzinfo=UTC)),
        (datetime(2027, 1, 2, 3, tzinfo=UTC), datetime(2027, 1, 2, 3, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_an_instant_in_utc(written: object, at: datetime):
    assert values.read_expiry(written) == at
    assert values.read_expiry(values.show_expiry(at)) == at


@pytest.mark.parametrize("written", ["", "soon", "2027-13-01", 20271231, None, "9999-12-31"])
def test_what_is_no_date_is_refused(written: object):
    with pytest.raises(ValueError, match="must be a date"):
        values.read_expiry(written)
