"""A model server in a process of its own, for tests over real sockets.

    with sim_process(slots=2) as sim:
        ... sim.url ... sim.state() ...

Leaving the block stops the process by its pid and checks that it ended with exit code 0.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import quote

READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0

State = dict[str, Any]


class SimProcess:
    """A running model server. `state()` is what `GET /sim/state` answers."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int) -> None:
        self.process = process
        self.pid = process.pid
        self.host = host
        self.port = port
        self.url = f"http://{host}:{port}"

    def state(self, request_id: str | None = None, *, requests: bool = True) -> State:
        """The books; of one request id only, or without the requests."""
        query = f"?id={quote(request_id)}" if request_id else "" if requests else "?requests=0"
        return self.call("GET", "/sim/state" + query)

    def reset(self) -> State:
        """As freshly started: breaks what runs, forgets what was."""
        return self.call("POST", "/sim/reset")

    def pause(self) -> State:
        """Stop the engine's time."""
        return self.call("POST", "/sim/pause")

    def resume(self) -> State:
        """Let the engine's time go on."""
        return self.call("POST", "/sim/resume")

    def script(self, words: str) -> State:
        """Script words for every request from now on; an empty string for none."""
        return self.call("POST", "/sim/script", words.encode())

    def wait(self, condition: Callable[[State], object], *, within_s: float = 10.0) -> State:
        """The first state that fulfils `condition`. Raises TimeoutError with the last one seen."""
        deadline = time.monotonic() + within_s
        while True:
            state = self.state()
            if condition(state):
                return state
            if time.monotonic() > deadline:
                raise TimeoutError(f"the condition did not come within {within_s} s; last state: {state}")
            time.sleep(0.005)

    def call(self, method: str, path: str, body: bytes | None = None) -> State:
        """One request on a connection of its own; any answer but 200 is an AssertionError."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method, path, body=body)
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, f"{method} {path}: {response.status} {text!r}"
            document: State = json.loads(text)
            return document
        finally:
            connection.close()


@contextmanager
def sim_process(
    *,
    slots: int = 8,
    queue: int | None = None,
    seed: int = 0,
    models: tuple[str, ...] = ("demo",),
    script: str = "",
    port: int = 0,
) -> Iterator[SimProcess]:
    """Start `python -m inferencemesh sim` and stop it again."""
    command = [sys.executable, "-m", "inferencemesh", "sim", "--port", str(port), "--slots", str(slots)]
    command += ["--seed", str(seed), "--script", script]
    command += [] if queue is None else ["--queue", str(queue)]
    for model in models:
        command += ["--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        line = _first_line(process)
        host, _, number = line.split()[2].removeprefix("http://").rpartition(":")
        yield SimProcess(process, host, int(number))
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOPPED_WITHIN_S)
        assert code == 0, f"the model server ended with exit code {code}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = _read_line(process.stdout, READY_WITHIN_S)
    assert line.startswith("sim ready http://"), f"no ready line from the model server, but {line!r}"
    return line


def _read_line(stream: IO[bytes], within_s: float) -> str:
    deadline = time.monotonic() + within_s
    data = b""
    while not data.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        if not select.select([stream], [], [], left)[0]:
            raise TimeoutError(f"the model server printed no ready line within {within_s} s")
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        data += byte
    return data.decode()
