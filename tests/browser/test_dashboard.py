"""The page in a real browser, where one is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from inferencemesh.admin.app import admin_app
from inferencemesh.admin.server import AdminServer, bind
from inferencemesh.core.snapshot import LineView, Snapshot, TenantView
from tests.admin.fakes import EXTRAS, FakeView

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--window-size=1280,1200",
]
EVIL = "<img src=x onerror=\"document.title='owned'\">"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium"),
]


class EvilView(FakeView):
    """A tenant whose name is markup."""

    def snapshot(self) -> Snapshot:
        base = super().snapshot()
        line = LineView("llama-3", 3, 2.5, {EVIL: 2, "globex": 1}, 16)
        tenants = (TenantView(EVIL, running=4, waiting=2, service=12.5, draining=1), *base.tenants[1:])
        return replace(base, lines=(line, *base.lines[1:]), tenants=tenants)


class Visible(HTMLParser):
    """The text of a dumped page that is not under `hidden`."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self._stack: list[bool] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            hidden = any(name == "hidden" for name, _ in attrs) or tag in ("script", "style", "noscript")
            self._stack.append(hidden or (bool(self._stack) and self._stack[-1]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and self._stack:
            self._stack.pop()

    def handle_data(self, data: str) -> None:
        if not (self._stack and self._stack[-1]):
            self.words.append(data)


def look(view: FakeView, token: str | None = None) -> tuple[str, str]:
    """The page after some polls: its visible text and its markup. Fails on anything the CSP blocked."""

    async def browse() -> tuple[bytes, bytes]:
        server = AdminServer(admin_app(view, token), bind("127.0.0.1", 0))
        await server.start()
        profile = tempfile.mkdtemp(prefix="mesh-browser-")
        assert BROWSER is not None
        options = (
            *FLAGS,
            f"--user-data-dir={profile}",
            "--virtual-time-budget=6000",
            "--dump-dom",
            server.url,
        )
        process = await asyncio.create_subprocess_exec(
            BROWSER, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            return await asyncio.wait_for(process.communicate(), 40)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await server.close()
            shutil.rmtree(profile, ignore_errors=True)

    dom, errors = (part.decode(errors="replace") for part in asyncio.run(browse()))
    assert "Content Security Policy" not in errors
    assert "Uncaught" not in errors
    reader = Visible()
    reader.feed(dom)
    return re.sub(r"\s+", " ", " ".join(reader.words)), dom


def test_the_numbers_stand_there_and_add_up():
    view = EvilView()
    text, dom = look(view)
    assert view.polls >= 5
    assert "ready" in text
    assert "✓ adds up" in text
    assert re.search(r"accepted 50 .*waiting 3 .*running 6 .*completed 30 .*refused 976", text)
    assert "4 running, 1 draining, 3 free of 8" in text
    assert "3 waiting of at most 16" in text
    assert "simulator" not in text
    assert dom.count('class="cell running"') == 4 + 2 + 1  # and the legend's
    # A name is text, and nothing else.
    assert EVIL in text
    assert "<img" not in dom
    assert "owned" not in dom.split("</title>")[0]


def test_a_simulator_is_called_one_in_every_section():
    text, dom = look(FakeView(extras=replace(EXTRAS, simulator=True)))
    assert text.count("simulator, not a GPU") >= 2 + dom.count('<span class="sim">')
    assert dom.count('<span class="sim">') == 6


def test_reasons_are_told():
    text, _ = look(FakeView(reasons=["backend gpu-b is down"]))
    assert "Degraded: backend gpu-b is down." in text
    text, _ = look(FakeView(ready=False, reasons=["shutting down"]))
    assert "Not ready: shutting down." in text


def test_a_token_is_asked_for_and_nothing_is_shown_without_it():
    view = FakeView()
    text, _ = look(view, "a-token-of-some-length")
    assert "asks for its admin token" in text
    assert "accepted" not in text
    assert view.polls == 0


def test_an_unreachable_gateway_is_said_to_be_one():
    view = FakeView()
    view.fail_after = 3
    text, dom = look(view)
    assert "The gateway does not answer." in text
    assert "unreachable" in text
    assert 'class="stale"' in dom
