from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inferencemesh.sim.script import ScriptError
from inferencemesh.sim.server import SimServer
from tests.sim.rawclient import chat_body, contents, data_events


async def ask(port: int, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.0\r\nhost: sim\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer.partition(b"\r\n\r\n")[2]


def test_it_runs_in_the_callers_loop() -> None:
    async def main() -> None:
        server = SimServer(slots=2, seed=1, queue=100, default_tokens=5, default_interval_s=0.002)
        await server.start()
        answers = await asyncio.gather(*(ask(server.port, chat_body(user=str(n))) for n in range(20)))
        assert [len(contents(answer)) for answer in answers] == [5] * 20
        assert data_events(answers[0])[-1] == "[DONE]"
        state: dict[str, Any] = server.state()
        assert (state["completed"], state["peak_running"], state["running"]) == (20, 2, 0)
        server.reset()
        assert server.state()["completed"] == 0
        await server.close()
        await server.close()

    asyncio.run(main())


def test_bad_arguments_are_refused_before_the_start() -> None:
    with pytest.raises(ScriptError):
        SimServer(script="nonsense")
    with pytest.raises(RuntimeError):
        _ = SimServer().port
