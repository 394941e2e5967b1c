"""The process: `serve` with and without a file, `demo`, taken ports, signals, the official SDK."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.contract.support import ask, chat, drive, gateway, idle, mesh, until

WITHIN_S = 20


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inferencemesh", *arguments], capture_output=True, text=True, timeout=WITHIN_S
    )


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has printed its `ready` line; what it had printed until then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "inferencemesh", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if '"event":"ready"' in line:
                break
        yield process, said
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WITHIN_S)
        process.stdout.close()


def port_of(said: str, key: str = "public") -> int:
    found = re.search(rf'"{key}":"http://127.0.0.1:(\d+)"', said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.parametrize("command", ["serve", "demo"])
@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_taken_port_gets_a_usable_message(sim, command, which):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = ["--backend", sim.url] if command == "serve" else []
        other = "--admin-port" if which == "--port" else "--port"
        ended = run(command, *options, which, port, other, "0")
    assert ended.returncode == 2
    assert port in ended.stderr
    assert which in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_demo_answers_and_ends_cleanly(number):
    with started("demo", "--port", "0", "--admin-port", "0") as (process, said):
        port = port_of(said)
        answer = drive(ask(port, chat("tokens=3 interval=1ms")))
        assert answer.body.endswith(b"data: [DONE]\n\n")
        process.send_signal(number)
        assert process.wait(WITHIN_S) == 0
        assert process.stdout is not None
        assert "Traceback" not in said + process.stdout.read()


def test_a_hangup_that_is_ignored_stays_ignored():
    """`nohup` is meant to keep it running."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with started("demo", "--port", "0", "--admin-port", "0") as (process, said):
            process.send_signal(signal.SIGHUP)
            assert drive(ask(port_of(said), chat("tokens=1"))).status == 200
            process.terminate()
            assert process.wait(WITHIN_S) == 0
            assert process.stdout is not None
            assert '"signal":"SIGTERM"' in said + process.stdout.read()
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_serve_without_a_file(sim):
    """It asks the backend for its models, and says which slots it assumes."""
    with started("serve", "--backend", sim.url, "--port", "0", "--admin-port", "0") as (process, said):
        assert "8 slots assumed" in said
        assert "demo" in said
        assert drive(ask(port_of(said), chat("tokens=1"))).status == 200
        process.terminate()
        assert process.wait(WITHIN_S) == 0


def test_serve_needs_a_backend_that_tells_its_models():
    ended = run("serve", "--backend", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0")
    assert ended.returncode == 2
    assert "--model" in ended.stderr


def test_a_bad_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "mesh.yaml"
    path.write_text("backends:\n  - {name: a, url: 'http://127.0.0.1:1', slots: 2}\nserver:\n  prot: 8080\n")
    ended = run("serve", "-c", str(path))
    assert ended.returncode == 2
    assert f"{path}:4" in ended.stderr
    assert "port" in ended.stderr


def test_without_uvloop_it_runs_on_asyncio(sim, tmp_path, monkeypatch):
    (tmp_path / "uvloop.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with gateway(mesh(sim.url)) as running:
        answer = drive(ask(running.port, chat("tokens=5")))
        assert answer.body.endswith(b"data: [DONE]\n\n")
        drive(until(lambda: idle(running.state())))


def test_a_backend_that_is_down_fails_readiness_and_comes_back(sim):
    health = {"interval": "100ms", "timeout": "1s", "unhealthy_after": 2}
    with gateway(mesh("http://127.0.0.1:9", backend={"health": health}, retries={"attempts": 1})) as running:
        drive(until(lambda: not running.state()["ready"]))
        answer = drive(ask(running.port, chat()))
        assert (answer.status, answer.headers["x-mesh-code"]) == (503, "no_backend")


def test_C8_the_official_sdk_sees_its_own_errors(sim):
    """Streaming and plain: typed exceptions where they can be had, and never a silent success."""
    document = mesh(
        sim.url,
        slots=2,
        retries={"attempts": 1},
        model={"queue": {"max_waiting": 0}},
        timeouts={"first_content": "1s", "idle": "1s"},
        backend={"drain": {"policy": "trust"}},
    )
    with gateway(document) as running, openai_client(running.port) as client:

        def ask_sdk(script: str, *, stream: bool = True, model: str = "demo") -> str:
            messages: Any = [{"role": "user", "content": f"[[sim {script}]]"}]
            answer: Any = client.chat.completions.create(model=model, stream=stream, messages=messages)
            if not stream:
                return str(answer.choices[0].message.content)
            return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)

        assert len(ask_sdk("tokens=5").split()) == len(ask_sdk("tokens=5", stream=False).split()) == 5
        for script, stream, exception, code in [
            ("status=500", True, openai.InternalServerError, "upstream_error"),
            ("status=500", False, openai.InternalServerError, "upstream_error"),
            ("hang=headers", True, openai.InternalServerError, "first_content_timeout"),
            ("cut=after:3", True, openai.APIError, "upstream_reset"),
            ("end=after:3 nofinish", True, openai.APIError, "upstream_incomplete"),
            ("error=after:3", True, openai.APIError, "upstream_error"),
            ("hang=after:3", True, openai.APIError, "idle_timeout"),
        ]:
            with pytest.raises(exception) as caught:
                ask_sdk(script, stream=stream)
            assert getattr(caught.value, "code", None) == code, script
        with pytest.raises(openai.NotFoundError) as missing:
            ask_sdk("", model="nobody")
        assert missing.value.code == "model_not_found"
        with client.chat.completions.create(
            model="demo", stream=True, messages=[{"role": "user", "content": "[[sim hang=after:1]]"}]
        ) as one:
            next(iter(one))
            with client.chat.completions.create(
                model="demo", stream=True, messages=[{"role": "user", "content": "[[sim hang=after:1]]"}]
            ) as two:
                next(iter(two))
                with pytest.raises(openai.InternalServerError) as full:
                    ask_sdk("tokens=1")
                assert full.value.code == "queue_full"
                assert full.value.request_id
        drive(until(lambda: idle(running.state())))


@contextmanager
def openai_client(port: int) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_slots_auto_asks_the_engine_that_can_tell(sim):
    with gateway(mesh(sim.url, backend={"slots": "auto"})) as running:
        assert running.state()["backends"][0]["slots"]["capacity"] == sim.state()["slots"]


def test_what_is_odd_about_the_configuration_is_logged(sim):
    with gateway(mesh(sim.url, slots=4, tenants=[{"name": "nobody"}], anonymous="allow")) as running:
        remarks = [line["remark"] for line in running.lines if line.get("event") == "configuration"]
        assert len(remarks) == 1
        assert "nobody can be the tenant `nobody`" in remarks[0]


def test_slots_auto_with_an_engine_that_cannot_tell(sim, tmp_path):
    path = tmp_path / "mesh.yaml"
    path.write_text(f"backends: [{{name: a, url: '{sim.url}', slots: auto}}]\n")
    ended = run("serve", "-c", str(path), "--port", "0", "--admin-port", "0")
    assert ended.returncode == 2
    assert "write the number" in ended.stderr
