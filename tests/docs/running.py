"""Processes for the documents' commands: started on free ports, waited for by what they print, ended by signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

WITHIN_S = 30.0  # generous: nothing here is a measurement


class Running:
    """`inferencemesh …` as a process; `lines` are its log, `said` what it told the person before it."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self.said = ""
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferencemesh", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            text = raw.decode()
            with self._changed:
                try:
                    self.lines.append(json.loads(text))
                except ValueError:
                    self.said += text
                self._changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition on `lines` and `said`."""
        with self._changed:
            held = self._changed.wait_for(lambda: condition() or self._process.poll() is not None, WITHIN_S)
        assert held, f"not within {WITHIN_S} s; log {self.lines}, said {self.said}"
        assert condition(), f"ended with {self._process.poll()}; log {self.lines}, said {self.said}"

    def event(self, name: str) -> dict[str, Any]:
        """The first line of the log with this event, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines if line.get("event") == name]

        self.until(found)
        return found()[0]

    def stop(self) -> int:
        """End it as an operator does; returns the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(WITHIN_S)
        for reader in self._readers:
            reader.join(WITHIN_S)
        return code

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def running(arguments: list[str], folder: Path) -> Iterator[Running]:
    """Start a command, and check at the end that a SIGTERM ends it with exit code 0."""
    process = Running(arguments, folder)
    try:
        yield process
        assert process.stop() == 0, process.said
    finally:
        process.clean_up()
