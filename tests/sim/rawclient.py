"""A client on a bare socket: it sees each chunk with its instant, and how exactly the connection ended."""

from __future__ import annotations

import json
import socket
import struct
import time
from types import TracebackType
from typing import Any

TIMEOUT_S = 20.0


class RawClient:
    """One connection. `ended` is `complete`, `eof` (no last chunk, or a short body), `reset`, or None yet."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""  # of the response, not parsed yet
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.times: list[float] = []  # seconds after the request was sent, one for each chunk
        self.head_s = 0.0
        self.ended: str | None = None
        self.sent_at = 0.0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def send(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> RawClient:
        fields = {"host": "sim", "content-type": "application/json", "content-length": str(len(body))}
        lines = [f"{name}: {value}" for name, value in {**fields, **(headers or {})}.items()]
        head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()
        self.received, self.chunks, self.times, self.ended, self.status = b"", [], [], None, 0
        self.sent_at = time.monotonic()
        self.socket.sendall(head + body)
        return self

    def chat(self, script: str = "", *, request_id: str | None = None, **fields: Any) -> RawClient:
        headers = {"x-request-id": request_id} if request_id else None
        return self.send("/v1/chat/completions", chat_body(script, **fields), headers)

    def read_head(self) -> RawClient:
        """Read up to the body; the status stays 0 when the connection ends before."""
        while b"\r\n\r\n" not in self.received and self._more():
            pass
        if self.ended:
            return self
        self.head_s = time.monotonic() - self.sent_at
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        return self

    def read_chunk(self) -> bytes:
        """The next chunk; empty at the end, however it came."""
        while self.ended is None:
            size, found, rest = self.received.partition(b"\r\n")
            if found:
                length = int(size, 16)
                if len(rest) >= length + 2:
                    chunk, self.received = rest[:length], rest[length + 2 :]
                    if length == 0:
                        self.ended = "complete"
                        return b""
                    self.chunks.append(chunk)
                    self.times.append(time.monotonic() - self.sent_at)
                    return chunk
            self._more()
        return b""

    def read_to(self, text: bytes) -> RawClient:
        """Read chunks until the body holds `text`."""
        while text not in self.body:
            assert self.read_chunk(), f"{text!r} did not come: {self.ended}, {self.body!r}"
        return self

    def read_all(self) -> RawClient:
        """Read the whole response."""
        if self.status == 0:
            self.read_head()
        if self.ended is None and "content-length" in self.headers:
            length = int(self.headers["content-length"])
            while len(self.received) < length and self._more():
                pass
            self.chunks = [self.received[:length]]
            self.ended = "complete" if len(self.received) >= length else self.ended
        while self.ended is None:
            self.read_chunk()
        return self

    def silent(self, for_s: float = 0.15) -> bool:
        """Whether nothing comes for so long."""
        before = len(self.received), self.ended
        self.socket.settimeout(for_s)
        try:
            self._more()
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(TIMEOUT_S)
        return (len(self.received), self.ended) == before

    def document(self) -> Any:
        return json.loads(self.read_all().body)

    def leave(self, how: str) -> None:
        """Go away: `fin`, `rst`, or `half` (shut the sending side only)."""
        if how == "half":
            self.socket.shutdown(socket.SHUT_WR)
            return
        if how == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            self.ended = "reset"
            return False
        if not data:
            self.ended = "eof"
            return False
        self.received += data
        return True


def chat_body(script: str = "", **fields: Any) -> bytes:
    text = f"hello [[sim {script}]]" if script else "hello"
    document = {"model": "demo", "stream": True, "messages": [{"role": "user", "content": text}], **fields}
    return json.dumps(document).encode()


def data_events(body: bytes, end: bytes = b"\n\n") -> list[Any]:
    """The data of a stream's events, as documents; the marker as the text `[DONE]`; comments left out."""
    raw = body.split(end)
    assert raw.pop() == b"", f"the stream ends within an event: {body[-80:]!r}"
    found = [event.removeprefix(b"data: ") for event in raw if not event.startswith(b":")]
    return ["[DONE]" if data == b"[DONE]" else json.loads(data) for data in found]


def contents(body: bytes, choice: int = 0, end: bytes = b"\n\n") -> list[str]:
    """The content of each content event of one choice."""
    return [
        event["choices"][0]["delta"]["content"]
        for event in data_events(body, end)
        if isinstance(event, dict)
        and event.get("choices")
        and event["choices"][0]["index"] == choice
        and event["choices"][0]["delta"].get("content")
    ]
