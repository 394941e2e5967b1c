"""How heads and chunked bodies are delimited, and what is refused (contract G1, G3)."""

from __future__ import annotations

import pytest

from inferencemesh.runtime.http1.framing import ChunkedBody, FramingError, parse_head


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def test_a_plain_head():
    request = parse_head(
        head("POST /v1/a%20b?x=%31 HTTP/1.1", "Host: h", "X-A: 1 \t", "x-a:2", "Content-Length: 5")
    )
    assert (request.method, request.target) == ("POST", b"/v1/a%20b?x=%31")
    assert (request.path, request.query) == ("/v1/a b", b"x=%31")
    assert request.headers == [(b"host", b"h"), (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"5")]
    assert request.header(b"x-a") == b"1"
    assert request.header(b"none") is None
    assert request.content_length == 5
    assert request.keep_alive
    assert not request.http10
    assert not request.chunked


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://other/p/q?a=b", "/p/q", b"a=b"),
        ("HTTPS://other", "/", b""),
        ("http://other?x", "/", b"x"),
        ("/a//b/../c", "/a//b/../c", b""),
        ("/v1/models/org%2Fname", "/v1/models/org/name", b""),
        ("/%C3%A9", "/é", b""),
    ],
)
def test_targets(target, path, query):
    request = parse_head(head(f"GET {target} HTTP/1.1", "Host: h"))
    assert (request.path, request.query) == (path, query)


def test_asterisk_is_for_options():
    assert parse_head(head("OPTIONS * HTTP/1.1", "Host: h")).path == "*"
    with pytest.raises(FramingError):
        parse_head(head("GET * HTTP/1.1", "Host: h"))


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", [], True),
        ("1.1", ["close"], False),
        ("1.1", ["x, CLOSE"], False),
        ("1.1", ["keep-alive", "close"], False),
        ("1.0", [], False),
        ("1.0", ["Keep-Alive"], True),
        ("1.0", ["keep-alive, close"], False),
    ],
)
def test_keep_alive(version, connection, kept):
    fields = [f"Connection: {value}" for value in connection]
    assert parse_head(head(f"GET / HTTP/{version}", "Host: h", *fields)).keep_alive is kept


def test_expect_is_for_http11():
    assert parse_head(head("POST / HTTP/1.1", "Host: h", "Expect: 100-Continue")).expects_continue
    assert not parse_head(head("POST / HTTP/1.0", "Host: h", "Expect: 100-continue")).expects_continue
    assert not parse_head(head("POST / HTTP/1.1", "Host: h", "Expect: tea")).expects_continue


REFUSED = {
    "no host": ["GET / HTTP/1.1"],
    "two hosts": ["GET / HTTP/1.1", "Host: a", "Host: a"],
    "two hosts in 1.0": ["GET / HTTP/1.0", "Host: a", "Host: b"],
    "host with a path": ["GET / HTTP/1.1", "Host: a/b"],
    "host with a space": ["GET / HTTP/1.1", "Host: a b"],
    "length and chunked": ["POST / HTTP/1.1", "Host: a", "Content-Length: 5", "Transfer-Encoding: chunked"],
    "chunked and length": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked", "Content-Length: 5"],
    "two equal lengths": ["POST / HTTP/1.1", "Host: a", "Content-Length: 5", "Content-Length: 5"],
    "two lengths": ["POST / HTTP/1.1", "Host: a", "Content-Length: 5", "Content-Length: 6"],
    "a list of lengths": ["POST / HTTP/1.1", "Host: a", "Content-Length: 5, 5"],
    "signed length": ["POST / HTTP/1.1", "Host: a", "Content-Length: +5"],
    "negative length": ["POST / HTTP/1.1", "Host: a", "Content-Length: -1"],
    "hex length": ["POST / HTTP/1.1", "Host: a", "Content-Length: 0x5"],
    "spaced length": ["POST / HTTP/1.1", "Host: a", "Content-Length: 5 5"],
    "empty length": ["POST / HTTP/1.1", "Host: a", "Content-Length:"],
    "endless length": ["POST / HTTP/1.1", "Host: a", "Content-Length: " + "9" * 30],
    "absurd length": ["POST / HTTP/1.1", "Host: a", "Content-Length: " + "9" * 19],
    "xchunked": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: xchunked"],
    "gzip, chunked": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: gzip, chunked"],
    "chunked, gzip": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked, gzip"],
    "identity": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: identity"],
    "chunked twice": [
        "POST / HTTP/1.1",
        "Host: a",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: chunked",
    ],
    "chunked, chunked": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked, chunked"],
    "quoted chunked": ["POST / HTTP/1.1", "Host: a", 'Transfer-Encoding: "chunked"'],
    "vertical tab before chunked": ["POST / HTTP/1.1", "Host: a", "Transfer-Encoding: \x0bchunked"],
    "chunked in 1.0": ["POST / HTTP/1.0", "Host: a", "Transfer-Encoding: chunked"],
    "obs-fold": ["GET / HTTP/1.1", "Host: a", "X: 1", " 2"],
    "obs-fold by tab": ["GET / HTTP/1.1", "Host: a", "X: 1", "\t2"],
    "fold of the first field": ["GET / HTTP/1.1", " Host: a"],
    "space before colon": ["GET / HTTP/1.1", "Host : a"],
    "tab before colon": ["POST / HTTP/1.1", "Host: a", "Content-Length\t: 5"],
    "no colon": ["GET / HTTP/1.1", "Host: a", "nonsense"],
    "empty name": ["GET / HTTP/1.1", "Host: a", ": x"],
    "name with a bracket": ["GET / HTTP/1.1", "Host: a", "x[]: x"],
    "8-bit name": ["GET / HTTP/1.1", "Host: a", "x\xe9: x"],
    "NUL in a value": ["GET / HTTP/1.1", "Host: a", "X: a\x00b"],
    "control in a value": ["GET / HTTP/1.1", "Host: a", "X: a\x01b"],
    "DEL in a value": ["GET / HTTP/1.1", "Host: a", "X: a\x7fb"],
    "CR in a value": ["GET / HTTP/1.1", "Host: a", "X: a\rb"],
    "bare LF": ["GET / HTTP/1.1", "Host: a\nX: b"],
    "two spaces": ["GET  / HTTP/1.1", "Host: a"],
    "trailing space": ["GET / HTTP/1.1 ", "Host: a"],
    "tab in the request line": ["GET\t/ HTTP/1.1", "Host: a"],
    "leading space": [" GET / HTTP/1.1", "Host: a"],
    "HTTP/0.9": ["GET /"],
    "HTTP/1.2": ["GET / HTTP/1.2", "Host: a"],
    "HTTP/2.0": ["GET / HTTP/2.0", "Host: a"],
    "lower-case version": ["GET / http/1.1", "Host: a"],
    "preface of HTTP/2": ["PRI * HTTP/2.0"],
    "PRI as HTTP/1.1": ["PRI * HTTP/1.1", "Host: a"],
    "SOURCE of another protocol": ["SOURCE / ICE/1.0", "Host: a"],
    "connect": ["CONNECT a:443 HTTP/1.1", "Host: a:443"],
    "upgrade": ["GET / HTTP/1.1", "Host: a", "Connection: Upgrade", "Upgrade: websocket"],
    "upgrade to h2c": [
        "POST / HTTP/1.1",
        "Host: a",
        "Connection: close, upgrade",
        "Upgrade: h2c",
        "Content-Length: 1",
    ],
    "unknown method": ["FETCH / HTTP/1.1", "Host: a"],
    "lower-case method": ["get / HTTP/1.1", "Host: a"],
    "relative target": ["GET a/b HTTP/1.1", "Host: a"],
    "another scheme": ["GET ftp://a/b HTTP/1.1", "Host: a"],
    "no authority": ["GET http:///b HTTP/1.1", "Host: a"],
    "fragment": ["GET /a#b HTTP/1.1", "Host: a"],
    "8-bit target": ["GET /\xe9 HTTP/1.1", "Host: a"],
    "NUL in the path": ["GET /%00 HTTP/1.1", "Host: a"],
    "line end in the path": ["GET /a%0d%0ab HTTP/1.1", "Host: a"],
    "broken UTF-8 in the path": ["GET /%ff HTTP/1.1", "Host: a"],
}


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED.keys())
def test_refused(lines):
    with pytest.raises(FramingError) as caught:
        parse_head(head(*lines))
    assert caught.value.code == "invalid_request"


def test_too_many_fields():
    with pytest.raises(FramingError) as caught:
        parse_head(head("GET / HTTP/1.1", "Host: a", *(f"x-{n}: 1" for n in range(300))))
    assert caught.value.code == "headers_too_large"


def test_an_empty_value_does_not_swallow_the_next_field():
    request = parse_head(head("POST / HTTP/1.1", "Host: a", "X:", "Content-Length: 5"))
    assert request.headers[1:] == [(b"x", b""), (b"content-length", b"5")]


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;name=value\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
        b"05\r\nhello\r\n00\r\n\r\n",
        b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    ],
)
def test_chunks_at_every_split(body):
    for cut in range(len(body) + 1):
        chunks = ChunkedBody(1000)
        for piece in (body[:cut], body[cut:]):
            if piece:
                chunks.feed(piece)
        assert chunks.complete
        assert not chunks.extra
        assert (chunks.size, chunks.take()) == (5, b"hello")


@pytest.mark.parametrize(
    "body",
    [
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r\n0\n\n",
        b"5\r\r\nhello\r\n0\r\n\r\n",
        b"5;\nx\r\nhello\r\n0\r\n\r\n",
        b'5;a="b\nc"\r\nhello\r\n0\r\n\r\n',
        b"fffffffffffffffff\r\n",
        b"\r\n5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nx: 1\n\r\n",
        b"5\r\nhello\r\n0\r\ncontent-length: 3\r\n\r\n",
    ],
)
def test_broken_chunks(body):
    with pytest.raises(FramingError):
        ChunkedBody(1000).feed(body)


def test_bytes_behind_the_last_chunk_are_noticed_and_not_read():
    chunks = ChunkedBody(1000)
    chunks.feed(b"2\r\nhi\r\n0\r\n\r\nPOST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nbad\r\n")
    assert chunks.complete
    assert chunks.extra
    assert chunks.take() == b"hi"


@pytest.mark.parametrize("start", [b"1;", b"0\r\nx-trailer: "])
def test_endless_extensions_and_trailers(start):
    chunks = ChunkedBody(1000)
    chunks.feed(start)
    fed = 0
    with pytest.raises(FramingError) as caught:  # noqa: PT012 - at the limit, not before
        while True:
            chunks.feed(b"a" * 100)
            fed += 100
    assert 900 <= fed <= 1000
    assert caught.value.code == "headers_too_large"
