"""Where fuzzing begins: for each target inputs of every shape, and what fuzzing has found, kept for good."""

from __future__ import annotations

import random
from collections.abc import Iterator

_HOST = b"host: x\r\n"
_CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
_FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
_DONE = b"data: [DONE]\n\n"

_STREAMS = [
    _CHUNK % b"a" + _CHUNK % "é🙂".encode() + _FINISH + _DONE,
    b"\xef\xbb\xbf" + _CHUNK % b"b" + _DONE + _DONE,
    (_CHUNK % b"c" + _FINISH + _DONE).replace(b"\n", b"\r\n"),
    (_CHUNK % b"d" + _DONE).replace(b"\n", b"\r"),
    b': ping\n\nevent: error\ndata: {"message": "m"}\n\n' + _DONE,
    b'data: {"error": {"code": 429}}\n\n',
    _CHUNK % b"e" + b'data: {"error": "text"}\n\n' + _DONE,
    _CHUNK % b"f" + b"data: [DONE]",
    b'data: {"a":\ndata: 1}\n\ndata\n\n:\n\n\r\n\r\r\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n',
    b"data: [DONE]x\n\ndata: " + b"x" * 70 + b"\n\n",
    _CHUNK % b"g" + b'data: {"choices":[{"index":0,"delta":{"content":"error [DONE] finish_reason"}}]}\n\n',
]
_BODIES = [
    b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"n":2}',
    b'{"messages":[{"model":"inner"}],"model" : "a\\u0062c","max_tokens":null}',
    b'{"model":"m","mod\\u0065l":"n","messages":[1]}',
    b'{"model":"m","messages":[1],"x":"\\"model\\":","metadata":{"model":"y","stream":1}}',
    b'{"model":"m","messages":[1],"temperature":NaN}',
    b'[{}]', b'{"model":', b"\xff\xfe{}", b'{"model":"\xc3","messages":[1]}',
    b'{"model":"m","messages":[1],"n":128,"best_of":9,"stream_options":{"include_usage":true}}',
]  # fmt: skip
_POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + _HOST
_REQUESTS = [
    _POST + b"content-length: 2\r\n\r\n{}GET / HTTP/1.1\r\n" + _HOST + b"\r\n",
    _POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n3;x=y\r\nabc\r\n0\r\nt: v\r\n\r\n",
    _POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    _POST + b"content-length: +2\r\n\r\n{}", _POST + b"content-length : 2\r\n\r\n{}",
    _POST + b"transfer-encoding:\tchunked \r\n\r\n0\r\n\r\n",
    _POST + b"expect: 100-continue\r\ncontent-length: 1\r\n\r\nx",
    b"\r\nGET /%41?b=c HTTP/1.1\r\n" + _HOST + b"connection: close\r\n\r\nGET / HTTP/1.1\r\n" + _HOST + b"\r\n",
    b"GET http://x/y HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    b"GET / HTTP/1.1\nhost: x\n\n", b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n", b"\x16\x03\x01\x00",
    _POST + b"content-length: 99999\r\n\r\n", b"GET / HTTP/1.1\r\n" + _HOST + b"x: " + b"y" * 300 + b"\r\n\r\n",
]  # fmt: skip
_OK = b"HTTP/1.1 200 OK\r\n"
_RESPONSES = [
    _OK + b"content-length: 5\r\n\r\nhello", _OK + b"content-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n",
    _OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    _OK + b"transfer-encoding: chunked\r\n\r\n5;e\r\nhello\r\n0\r\nt: v\r\n\r\nmore",
    _OK + b"\r\nuntil the end", b"HTTP/1.0 200 OK\r\n\r\nold", b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + _OK + b"content-length: 1\r\n\r\nx",
    b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\n" * 3 + _OK + b"content-length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", b"HTTP/2 200\r\n\r\n", b"garbage",
    _OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!", _OK + b"content-length: 9\r\n\r\nshort",
    _OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
]  # fmt: skip

# What fuzzing has found: each of these once broke something.
_FOUND: dict[str, list[bytes]] = {
    "server": [
        b"\x00\x01\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",  # a bare line end became a part of the method
        b"\x00\x02POST /v1/c\nhat0ompletp://x/y HTTP/1.0\r\n\r\n",  # and of the target
    ],
    "client": [
        # the body of an interim response became the beginning of the real one's
        b"\x01HTTP/1.1 199 x\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\ny",
    ],
}

CORPUS: dict[str, list[bytes]] = {
    "stream": [bytes((5, 1)) + data for data in _STREAMS] + [bytes((2, 3)) + data for data in _STREAMS],
    "peek": _BODIES,
    "server": [bytes((1, 1)) + data for data in _REQUESTS] + [bytes((0, 2)) + data for data in _REQUESTS],
    "client": [b"\x01" + data for data in _RESPONSES],
}
for _target, _inputs in _FOUND.items():
    CORPUS[_target] += _inputs
_PIECES = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b"0", b"chunked", b"content-length: 3", b"transfer-encoding: chunked",
    b"data: ", b"[DONE]", b"error", b'"finish_reason":"stop"', b'"model"', b"\\u0065", b"\xff", b"\x00", b":", b" ",
    b"HTTP/1.1", b"HTTP/1.0", b"{", b"}", b'"', b",", b"connection: close", b"\xef\xbb\xbf", b"\t", b";",
]  # fmt: skip


def mutants(target: str, seed: int) -> Iterator[bytes]:
    """Inputs near the corpus without end: what a fuzzer without guidance tries, and the same for a seed."""
    rng = random.Random(f"{target}:{seed}")
    corpus = CORPUS[target]
    while True:
        data = rng.choice(corpus)
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            data = _mutate(rng, data, corpus)
        yield data[:4000]


def _mutate(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    at, to = sorted(rng.randint(0, len(data)) for _ in range(2))
    draw = rng.randrange(6)
    if draw == 0:
        return data[:at] + rng.choice(_PIECES) + data[at:]
    if draw == 1:
        return data[:at] + rng.choice(_PIECES) + data[at + rng.randint(0, 4) :]
    if draw == 2:
        return data[:at] + data[min(to, at + 8) :]
    if draw == 3:
        return data[:to] + data[at:to] + data[to:]
    if draw == 4:
        return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
    other = rng.choice(corpus)
    return data[:at] + other[rng.randint(0, len(other)) :]
