"""What is fuzzed, and what must hold whatever the bytes: one function for each target, which raises if it does not.

Each takes one byte string. Its first bytes choose limits and where reads are cut; the rest is what is read. No target
knows of a fuzzer: the suite runs them over a corpus, `python -m tests.fuzz` over what a fuzzer makes up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from inferencemesh.core.errors import MeshError
from inferencemesh.runtime.engines.openai import OpenAIEngine
from inferencemesh.runtime.relay import Plan, StreamRelay
from inferencemesh.runtime.verdict import Result
from inferencemesh.wire.chat import ChatTracker
from inferencemesh.wire.peek import MAX_WIDTH, model_span, peek_chat, replace_model
from inferencemesh.wire.sse import BOM, EventTooLarge, Scanner, parse_event, split_events
from tests.fuzz.ends import client_read, server_read
from tests.fuzz.reference import parse_requests, parse_response, sse_events

SIZES = (1, 3, 16, 64, 1000, 1 << 20)


def cuts(data: bytes, seed: int) -> list[bytes]:
    """`data` in reads, as a seed cuts it; never an empty one."""
    rng = random.Random(seed)
    most = rng.choice((1, 2, 7, 100))
    reads = []
    while data:
        n = rng.randint(1, most)
        reads.append(data[:n])
        data = data[n:]
    return reads


# --- streams: scanner, tracker, relay ----------------------------------------------------------------------------


def scan(reads: Iterable[bytes], max_event: int) -> tuple[bytes, bytes, bool]:
    """What was passed, what is held, and whether an event was too large."""
    scanner = Scanner(max_event)
    passed = b""
    for read in reads:
        try:
            block = scanner.feed(read)
        except EventTooLarge as too_large:
            return passed + too_large.complete, b"", True
        assert not block or block.endswith((b"\n", b"\r")), block
        assert b"".join(split_events(block)) == block
        # One event may be held with an open line end behind it; a byte order mark not yet told may be longer.
        assert scanner.held <= max(max_event + 2, len(BOM)), scanner.held
        passed += block
    return passed, scanner.tail, False


def stream(data: bytes) -> None:
    """The SSE scanner, the tracker of chats and the relay of both."""
    if len(data) < 2:
        return
    max_event, seed, data = SIZES[data[0] % len(SIZES)], data[1], data[2:]
    bare = data.removeprefix(BOM)
    passed, tail, large = scan([data], max_event)
    again = scan(cuts(data, seed), max_event)
    assert (passed, large) == (again[0], again[2]), "what passes depends on how reads are cut"
    assert bare.startswith(passed) or not bare
    if not large:
        assert passed + tail == bare or BOM.startswith(data)
        events = [parse_event(raw) for raw in split_events(passed)]
        ours = [(event.name, event.data) for event in events if event.has_data]
        assert ours == sse_events(passed), "not as the specification reads it"
    _track(passed, seed)
    outlet = relayed([data], max_event)
    recut = relayed(cuts(data, seed), max_event)
    # A preamble is bounded as it comes: a small bound meets it in the middle of one way to read, not of the other.
    if max_event >= len(data):
        assert outlet.told() == recut.told()
        # What comes in one read with the marker may pass behind it: line ends and comments.
        short, long = sorted((outlet.body, recut.body), key=len)
        assert long.startswith(short)
        assert outlet.ended or long.rstrip(b"\r\n") == short.rstrip(b"\r\n")
        assert all(event.startswith((b":", b"\r", b"\n")) for event in split_events(long[len(short) :]))
    assert bare.startswith(outlet.body) or outlet.note == "blank_line_missing"


def _track(whole: bytes, seed: int) -> None:
    """However complete events are handed over, the tracker comes to one verdict and lets the same bytes pass."""
    if rb"\u00" in whole:
        return  # keys in escapes go unseen among others after the first content, as the tracker says
    rng = random.Random(seed)
    blocks: list[bytes] = []
    for raw in split_events(whole):
        if blocks and rng.random() < 0.5:
            blocks[-1] += raw
        else:
            blocks.append(raw)
    verdicts = []
    for pieces in ([whole], blocks):
        tracker = ChatTracker(2)
        passed = b""
        for piece in pieces:
            allowed = tracker.feed(piece)
            assert 0 <= allowed <= len(piece)
            assert tracker.error is None or not tracker.complete
            if tracker.error is None and not tracker.marker:
                assert allowed == len(piece)
            passed += piece[:allowed]
        assert whole.startswith(passed) or tracker.marker
        if tracker.marker:  # behind it only comments pass, and what follows one that was dropped may not
            passed = passed[: passed.find(b"[DONE]") + 6]
        verdicts.append(
            (passed, tracker.error, tracker.marker, tracker.finish_reasons, tracker.usage, tracker.content)
        )
    assert verdicts[0] == verdicts[1], "the verdict depends on how events came together"


class Outlet:
    """A caller's side that keeps what it is given."""

    def __init__(self) -> None:
        self.started = False
        self.ended = False
        self.body = b""
        self.note: str | None = None
        self.result: Result | None = None

    def begin(
        self, status: int, headers: Any, first: bytes, *, length: int | None, whole: bool = False
    ) -> None:
        assert not self.started
        self.started = True
        self.body += first
        self.ended = whole

    def write(self, block: bytes) -> None:
        assert self.started
        assert not self.ended
        self.body += block

    def finish(self, last: bytes) -> None:
        self.write(last)
        self.ended = True

    def told(self) -> tuple[Any, ...]:
        result = self.result
        assert result is not None
        return self.started, self.ended, result.ok, result.reason, result.full


def relayed(reads: Iterable[bytes], max_event: int) -> Outlet:
    """One stream through the relay to its clean end."""
    plan = Plan(
        stream=True, choices=1, prefetch="first_content", prefetch_max_s=1.0, first_content_s=1.0, idle_s=1.0,
        total_s=1.0, max_event_bytes=max_event, strict_marker=False,
    )  # fmt: skip
    outlet = Outlet()
    tracker = ChatTracker(1)
    relay = StreamRelay(plan, outlet, tracker, OpenAIEngine(), 200, [], lambda: None)
    for read in reads:
        outlet.result = relay.feed(read)
        if outlet.result is not None:
            break
    else:
        outlet.result = relay.end(b"")
    outlet.note = relay.note
    assert outlet.ended == outlet.result.ok, "a proper end is success, and nothing else is (C3)"
    assert not (outlet.ended and tracker.error is not None)
    return outlet


# --- bodies ------------------------------------------------------------------------------------------------------


def peek(body: bytes) -> None:
    """The look into a request's body."""
    try:
        asked = peek_chat(body)
    except MeshError as error:
        error.message.encode()
        if error.code not in ("invalid_json", "invalid_request"):
            raise
        return
    pairs = json.loads(body, object_pairs_hook=list)
    names = [name for name, _ in pairs]
    for name in ("model", "stream", "n", "best_of", "max_tokens", "max_completion_tokens"):
        assert names.count(name) <= 1, f"{name} twice: two readers may read two things"
    document = dict(pairs)
    assert asked.model == document["model"]
    assert asked.stream is (document.get("stream") is True)
    assert 1 <= asked.width <= MAX_WIDTH
    start, end = model_span(body)
    assert orjson.loads(body[start:end]) == asked.model
    other = replace_model(body, 'an"other')
    assert other[:start] == body[:start]
    assert other.endswith(body[end:])
    assert orjson.loads(other) == {**orjson.loads(body), "model": 'an"other'}


# --- HTTP --------------------------------------------------------------------------------------------------------


def server(data: bytes) -> None:
    """The framing of requests: one way to read them, or none."""
    if len(data) < 2:
        return
    limit, seed, data = (200, 4000)[data[0] % 2], data[1], data[2:]
    whole = server_read([data], header_bytes=limit)
    recut = server_read(cuts(data, seed), header_bytes=limit)
    for got in (whole, recut):
        assert got.reports == [], got.reports
        assert got.budget.used == 0, "bytes of a body are kept"
        assert got.statuses_are_whole()
    # Behind a chunked body in the same read nothing more is taken; else the reads make no difference.
    short, long = sorted((whole.requests, recut.requests), key=len)
    assert long[: len(short)] == short
    assert len(short) == len(long) or any(request.chunked for request in short), (short, long)
    expected = parse_requests(data)
    for request, one in zip(long, expected, strict=False):
        assert request == one, "read otherwise than by the book"
    assert len(long) <= len(expected)


def client(data: bytes) -> None:
    """The reading of responses."""
    if not data:
        return
    seed, data = data[0], data[1:]
    whole = client_read([data])
    recut = client_read(cuts(data, seed))
    for got in (whole, recut):
        assert got.reports == [], got.reports
        assert got.ends == 1, "one end, and only one"
        assert got.peak_idle <= 1
    assert (whole.head, whole.body, whole.lost) == (recut.head, recut.body, recut.lost)
    if whole.lost is None:
        expected = parse_response(data)
        assert expected is not None, "taken as complete, and by the book it is not"
        assert whole.head is not None
        assert (whole.head[0], whole.body) == (expected.status, expected.body)
    elif whole.lost not in ("upstream_reset", "upstream_protocol"):
        raise AssertionError(whole.lost)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "stream": stream,
    "peek": peek,
    "server": server,
    "client": client,
}
