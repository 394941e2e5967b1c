"""`inferencemesh sim` as a process: ready line, clean stop, readable refusals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.simproc import sim_process


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inferencemesh", "sim", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_taken_port_is_refused_with_a_usable_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bad_script_is_refused_with_a_usable_message() -> None:
    done = run("--script", "tokns=3")
    assert done.returncode == 2
    assert "did you mean tokens" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_while_a_stream_runs(number: signal.Signals) -> None:
    with sim_process(models=("a", "b"), script="hang=first") as sim:
        assert [model["id"] for model in sim.call("GET", "/v1/models")["data"]] == ["a", "b"]
        body = b'{"model": "a", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
        with socket.create_connection((sim.host, sim.port), timeout=20) as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            sim.wait(lambda state: state["running"] == 1)
            sim.process.send_signal(number)
            assert sim.process.wait(15) == 0
