"""Tests that planted bugs (`mutations`) have shown to be missing."""

from __future__ import annotations

import asyncio

import pytest

from inferencemesh.wire.chat import ChatTracker
from tests.contract.support import chat, post
from tests.runtime.inprocess import settled, world

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
ERROR = b'data: {"error":{"message":"out of memory","code":500}}\n\n'


def test_an_error_in_one_read_with_content_is_seen() -> None:
    tracker = ChatTracker()
    assert tracker.feed(CHUNK) == len(CHUNK)
    assert tracker.feed(CHUNK + ERROR + CHUNK) == len(CHUNK)
    assert tracker.error is not None
    assert not tracker.complete


@pytest.mark.parametrize("code", [503, 429])
def test_nothing_is_tried_again_after_output(code: int) -> None:
    """Whatever status an error in the stream names: what was written cannot be taken back (C4, B6)."""

    async def run() -> None:
        retries = {"attempts": 3, "budget": 1, "on": ["connect", 502, 503]}
        async with world(retries=retries) as (gateway, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            script = f"tokens=6 interval=10ms error=after:3 error_code={code}"
            writer.write(post(chat(script), "connection: close"))
            answer = await asyncio.wait_for(reader.read(-1), 20)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.count(b'data: {"error"') == 1
            assert b"[DONE]" not in answer
            assert gateway.upstreams["sim"].attempts == 1
            await settled(gateway)
            assert gateway.snapshot().totals.failed == 1

    asyncio.run(run())
