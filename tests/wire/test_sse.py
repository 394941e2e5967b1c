"""The scanner against a naive reader: any bytes, any line ends, any splits (contract C6)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencemesh.wire.sse import BOM, KEEPALIVE, EventTooLarge, Scanner, parse_event, split_events

MAX = 1 << 20
LINE_ENDS = [b"\n", b"\r\n", b"\r"]
FIXTURE = (
    b": hello\n\n"
    b'data: {"a":"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e"}\n\n'
    b"event: token\nid: 7\ndata:no space\n\n"
    b'data: {"a":\ndata:  1}\n\n'
    b"data: \xf0\x9f\x98\x80 end\n\n"
    b"\n"
    b"retry: 10\nnonsense\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    (b"", b'{"a":"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e"}'),
    (b"token", b"no space"),
    (b"", b'{"a":\n 1}'),
    (b"", b"\xf0\x9f\x98\x80 end"),
    (b"", b"[DONE]"),
]


def reference(stream: bytes) -> tuple[list[tuple[bytes, bytes]], int]:
    """Events with data, and where the last blank line ends, as the specification reads."""
    events: list[tuple[bytes, bytes]] = []
    data: list[bytes] = []
    name, end, at = b"", 0, 0
    while at < len(stream):
        stop = at
        while stop < len(stream) and stream[stop] not in b"\r\n":
            stop += 1
        if stop == len(stream):
            break
        line = stream[at:stop]
        at = stop + (2 if stream[stop : stop + 2] == b"\r\n" else 1)
        if not line:
            if data:
                events.append((name, b"\n".join(data)))
            name, data, end = b"", [], at
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
    return events, end


def events_of(blocks: list[bytes]) -> list[tuple[bytes, bytes]]:
    parsed = [parse_event(raw) for block in blocks for raw in split_events(block)]
    return [(event.name, event.data) for event in parsed if event.has_data]


def feed_all(pieces: list[bytes], limit: int = MAX) -> tuple[list[bytes], Scanner]:
    scanner = Scanner(limit)
    return [scanner.feed(piece) for piece in pieces], scanner


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def with_line_end(line_end: bytes) -> bytes:
    return FIXTURE.replace(b"\n", line_end)


streams = st.lists(
    st.sampled_from(
        [
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\r\n\r\n",
            b"data: x",
            b"data:",
            b"event: e",
            b": c",
            b" ",
            b"id",
            "日本".encode(),
            "😀".encode(),
            BOM,
            BOM[:1],
            b"\x00",
            b"\xff",
        ]
    ),
    max_size=30,
).map(b"".join) | st.binary(max_size=60)
splits = st.lists(st.integers(0, 120), max_size=12)


@given(streams, splits)
@settings(max_examples=600, deadline=None)
def test_what_comes_out_is_the_input_up_to_the_last_blank_line(stream: bytes, places: list[int]) -> None:
    blocks, scanner = feed_all(cut(stream, places))
    bare = stream.removeprefix(BOM)
    events, end = reference(bare)
    assert b"".join(blocks) == bare[:end]
    assert scanner.tail == bare[end:]
    assert scanner.held == len(bare) - end
    assert events_of(blocks) == events


@given(streams, splits, st.integers(0, 12))
@settings(max_examples=600, deadline=None)
def test_the_event_limit_does_not_depend_on_the_reads(stream: bytes, places: list[int], limit: int) -> None:
    def run(pieces: list[bytes]) -> tuple[bytes, bool]:
        scanner, out = Scanner(limit), b""
        for piece in pieces:
            try:
                out += scanner.feed(piece)
            except EventTooLarge as error:
                return out + error.complete, True
            assert scanner.held <= max(limit, 2)
        return out, False

    whole = run([stream])
    assert run(cut(stream, places)) == whole
    assert run([bytes([byte]) for byte in stream]) == whole


@pytest.mark.parametrize("line_end", LINE_ENDS)
@pytest.mark.parametrize("bom", [b"", BOM])
def test_every_split_point_of_a_stream(line_end: bytes, bom: bytes) -> None:
    """P2, P3, P7, P8, P10: LF, CRLF, CR; characters cut in two; a mark in 1 + 2 bytes; comments stay."""
    bare = with_line_end(line_end)
    stream = bom + bare
    for place in range(len(stream) + 1):
        blocks, scanner = feed_all([stream[:place], stream[place:]])
        assert b"".join(blocks) == bare
        assert scanner.tail == b""
        assert events_of(blocks) == EVENTS


@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_one_byte_per_read_loses_nothing(line_end: bytes) -> None:
    """P3: CJK and emoji, byte by byte."""
    stream = with_line_end(line_end)
    blocks, _ = feed_all([bytes([byte]) for byte in BOM + stream])
    assert b"".join(blocks) == stream
    assert events_of(blocks) == EVENTS


def test_every_pair_of_split_points_of_a_crlf_stream() -> None:
    """P2: CR and LF of a blank line in different reads make no second blank line."""
    stream = b"data: 1\r\n\r\ndata: 2\r\n\r\n"
    for a in range(len(stream) + 1):
        for b in range(a, len(stream) + 1):
            blocks, _ = feed_all([stream[:a], stream[a:b], stream[b:]])
            assert b"".join(blocks) == stream
            assert events_of(blocks) == [(b"", b"1"), (b"", b"2")]


@pytest.mark.parametrize(
    "event", [b"data: x\n\n", b"data: x\r\n\r\n", b"data: x\r\r", b"data: x\n\r\n", b": c\r\n\r"]
)
def test_an_event_passes_with_its_last_byte(event: bytes) -> None:
    """C6: nothing waits for the next event, also when only a CR shows that a line is blank."""
    for first in (b"", b"data: 0\n\n"):
        scanner = Scanner(MAX)
        scanner.feed(first)
        assert scanner.feed(event[:-1]) == b"" or event.endswith(b"\r\n")
        assert scanner.feed(event[-1:]) != b""
        assert scanner.held == 0


def test_the_usual_read_is_returned_as_the_same_object() -> None:
    scanner = Scanner(MAX)
    scanner.feed(b": start\n\n")
    for read in (b"data: 1\n\ndata: 2\n\n", b"data: 1\r\n\r\n"):
        assert scanner.feed(read) is read


def test_no_space_behind_the_colon() -> None:
    """P1."""
    event = parse_event(b'data:{"a":1}\n\n')
    assert (event.data, event.has_data) == (b'{"a":1}', True)


def test_parse_event_reads_fields_as_the_specification_says() -> None:
    event = parse_event(b": c\nevent:x\nid\ndata:  two\r\ndata\rerror: e\n:d\n\n")
    assert event.name == b"x"
    assert event.data == b" two\n"
    assert event.fields == (
        (b"event", b"x"),
        (b"id", b""),
        (b"data", b" two"),
        (b"data", b""),
        (b"error", b"e"),
    )
    assert event.field(b"error") == b"e"
    assert event.field(b"none") is None
    assert not parse_event(b": only a comment\n\n").has_data


def test_a_keepalive_makes_no_empty_event() -> None:
    """P10: no blank line of its own, so that even a client that dispatches empty events sees none."""
    block = KEEPALIVE + b"data: 1\n\n"
    assert b"\n\n" not in KEEPALIVE
    assert list(split_events(block)) == [block]
    assert parse_event(block).fields == ((b"data", b"1"),)


@given(streams)
@settings(max_examples=200, deadline=None)
def test_split_events_joined_is_the_block(stream: bytes) -> None:
    assert b"".join(split_events(stream)) == stream


def test_a_megabyte_in_one_event_passes() -> None:
    """P4."""
    event = b"data: " + b"x" * MAX + b"\n\n"
    blocks, _ = feed_all([event[at : at + 1000] for at in range(0, len(event), 1000)], limit=2 * MAX)
    assert b"".join(blocks) == event


def test_work_is_linear_in_the_bytes_fed() -> None:
    """P4: a megabyte byte by byte; rescanning what is held would take minutes."""
    begun = time.perf_counter()
    scanner = Scanner(2 * MAX)
    for _ in range(MAX):
        scanner.feed(b"x")
    assert scanner.feed(b"\n\n")[-3:] == b"x\n\n"
    assert time.perf_counter() - begun < 20


@pytest.mark.parametrize("byte", [b"x", b"\xf0"])
def test_a_stream_without_line_ends_stops_at_the_limit(byte: bytes) -> None:
    """P5: memory stays at the limit."""
    scanner = Scanner(1 << 20)
    piece = byte * 65536
    for _ in range(16):
        scanner.feed(piece)
        assert scanner.held <= 1 << 20
    with pytest.raises(EventTooLarge) as caught:
        scanner.feed(piece)
    assert caught.value.limit == 1 << 20
    assert "1048576 bytes" in str(caught.value)


def test_events_before_a_too_large_one_are_not_lost() -> None:
    scanner = Scanner(16)
    with pytest.raises(EventTooLarge) as caught:
        scanner.feed(b"data: 1\n\ndata: 2\n\ndata: " + b"x" * 20)
    assert caught.value.complete == b"data: 1\n\ndata: 2\n\n"


def test_an_empty_read_changes_nothing() -> None:
    scanner = Scanner(MAX)
    assert [scanner.feed(piece) for piece in (b"", b"data", b"", b": 1\n", b"", b"\n", b"")] == [
        b"",
        b"",
        b"",
        b"",
        b"",
        b"data: 1\n\n",
        b"",
    ]
