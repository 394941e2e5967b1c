"""Makes the bytes of an answer out of the seed and the request's body: the same two give the same bytes.

Nothing is kept per token: token k is computed when it is written, so that an answer of a million tokens, or
of 1 MB events, costs no memory. Nothing here counts, waits or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import orjson

from inferencemesh.sim.request import ChatCall, error_body
from inferencemesh.sim.script import SPLIT_AUTO, Script

# Every fourth word has multi-byte characters (two, three and four bytes): whoever cuts bytes wrongly meets
# one soon. No word needs escaping in JSON.
_PLAIN_TEXT = """
a able after again all and any as at back be because both by can come day each even every few find first for
from give good great hand have here how if in into it just know last left line little long make many may mesh
more most move must new next no not now
"""
_WIDE_TEXT = "café naïve über señor Ω привет мир 東京 データ 你好 한국어 ½ → € 🙂 🚀 🌍 ∑ שלום"
_PLAIN = tuple(word.encode() for word in _PLAIN_TEXT.split())
_WIDE = tuple(word.encode() for word in _WIDE_TEXT.split())
_WIDE_EVERY = 4
_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads consecutive numbers (Knuth, TAOCP 6.4)
_MASK = (1 << 64) - 1
_CREATED_FROM = 1_700_000_000  # virtual: the answer's `created` must not depend on when it was asked for
_FILL = b"."
_COMMENT = b": keep-alive"


class Answer:
    """The bytes of one answer, and when each of its tokens is due."""

    __slots__ = (
        "_call",
        "_end",
        "_heads",
        "_key",
        "_tail",
        "created",
        "finish_reason",
        "id",
        "script",
        "tokens",
    )

    def __init__(self, call: ChatCall, seed: int) -> None:
        script = call.script
        digest = blake2b(call.digest, digest_size=16, key=str(seed).encode()[:64]).digest()
        self._call = call
        self._key = int.from_bytes(digest[:8], "big")
        self.script: Script = script
        self.id = "chatcmpl-" + digest.hex()
        self.created = _CREATED_FROM + seed % 100_000_000
        self.tokens = script.tokens if call.max_tokens is None else min(script.tokens, call.max_tokens)
        cut_short = self.tokens < script.tokens
        self.finish_reason = "length" if cut_short else "stop"
        self._end = b"\r\n\r\n" if script.crlf else b"\n\n"
        start = (
            f'data: {{"id":"{self.id}","object":"chat.completion.chunk","created":{self.created},"model":'
        ).encode() + orjson.dumps(call.model)
        self._heads = [start + f',"choices":[{{"index":{i},"delta":'.encode() for i in range(call.choices)]
        self._tail = b',"logprobs":null,"finish_reason":null}]}' + self._end

    # When.

    def due_s(self, token: int) -> float:
        """When a token is due, in seconds after the start. Not monotonic if jitter exceeds interval."""
        script = self.script
        due_s = script.first_s + token * script.interval_s
        if script.jitter_s:
            due_s += script.jitter_s * (_mix(self._key ^ token) / _MASK)
        return due_s

    # What, as events of a stream.

    def role(self) -> bytes:
        """The chunk that opens each choice: a role, no content."""
        return b"".join(
            head + b'{"role":"assistant","content":""}' + self._tail for head in self._heads
        )  # fmt: skip

    def step(self, token: int) -> bytes:
        """One content event for each choice."""
        if len(self._heads) == 1:
            return self._content(token, 0)
        return b"".join([self._content(token, choice) for choice in range(len(self._heads))])

    def finish(self) -> bytes:
        """The chunk with each choice's finish_reason; empty under `nofinish`."""
        if not self.script.finish:
            return b""
        tail = f'{{}},"logprobs":null,"finish_reason":"{self.finish_reason}"}}]}}'.encode() + self._end
        return b"".join(head + tail for head in self._heads)

    def usage(self) -> bytes:
        """The chunk with the usage and no choices; empty unless the caller asked for it."""
        if not self._call.include_usage:
            return b""
        document = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self._call.model,
            "choices": [],
            "usage": self._usage(),
        }
        return b"data: " + orjson.dumps(document) + self._end

    def done(self) -> bytes:
        """The success marker; empty under `nodone`."""
        return b"data: [DONE]" + self._end if self.script.done else b""

    def error(self) -> bytes:
        """The error event of `error=`, followed by the marker: vLLM sends both."""
        return b"data: " + self.error_document() + self._end + self.done()

    def comment(self) -> bytes:
        """A comment, as engines send it to keep a silent connection open."""
        return _COMMENT + self._end

    # What, as one document.

    def plain(self) -> bytes:
        """The answer to a request without `stream`."""
        choices = [
            {
                "index": choice,
                "message": {"role": "assistant", "content": self.text(choice)},
                "logprobs": None,
                "finish_reason": self.finish_reason if self.script.finish else None,
            }
            for choice in range(self._call.choices)
        ]
        return orjson.dumps(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self._call.model,
                "choices": choices,
                "usage": self._usage(),
            }
        )

    def error_document(self) -> bytes:
        """The error object of `error=`."""
        code = self.script.error_code
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        if code != 500:
            message = f"The engine failed with {code} while it was generating (asked for by the script)."
        return error_body(code, message)

    def text(self, choice: int) -> str:
        """The whole content of one choice: what the content events of a stream add up to."""
        return b"".join(
            self._word(token, choice) + _FILL * self._fill(token, choice) for token in range(self.tokens)
        ).decode()

    # The parts.

    def _content(self, token: int, choice: int) -> bytes:
        word = self._word(token, choice) + _FILL * self._fill(token, choice)
        return self._heads[choice] + b'{"content":"' + word + b'"}' + self._tail

    def _fill(self, token: int, choice: int) -> int:
        """How many filling bytes bring a content event to the size that the script asks for."""
        if not self.script.event_bytes:
            return 0
        bare = len(self._heads[choice]) + 14 + len(self._word(token, choice)) + len(self._tail)
        return max(0, self.script.event_bytes - bare)

    def _word(self, token: int, choice: int) -> bytes:
        key = self._key + choice * _STEP
        words = _WIDE if (token + key) % _WIDE_EVERY == 0 else _PLAIN
        word = words[_mix(key + token) % len(words)]
        return b" " + word if token else word

    def _usage(self) -> dict[str, int]:
        prompt = self._call.prompt_tokens
        made = self.tokens * self._call.choices
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def pieces(data: bytes, split: int) -> Iterator[bytes]:
    """`data` cut up for separate writes: pieces of `split` bytes, or (SPLIT_AUTO) eight at most.

    The automatic cut puts one border into the first multi-byte character, if there is one.
    """
    if split != SPLIT_AUTO:
        yield from (data[start : start + split] for start in range(0, len(data), split))
        return
    borders = {len(data) * part // 7 for part in range(1, 7)}
    inside = next((place for place, byte in enumerate(data) if byte & 0xC0 == 0x80), None)
    if inside is not None:
        borders.add(inside)
    start = 0
    for border in sorted(borders | {len(data)}):
        if border > start:
            yield data[start:border]
            start = border


def _mix(number: int) -> int:
    """A fixed draw out of 64 bits for each number (the finaliser of SplitMix64)."""
    number = (number * _STEP) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
