"""`inferencemesh sim`: the deterministic, fault-scriptable model server on its own."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from typing import TYPE_CHECKING

import click

from inferencemesh.sim import DEFAULT_MODEL, DEFAULT_SLOTS

if TYPE_CHECKING:
    from inferencemesh.sim.server import SimServer


@click.command("sim")
@click.option(
    "--port", default=8001, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--slots", default=DEFAULT_SLOTS, show_default=True, type=click.IntRange(1), help="Sequences at a time."
)
@click.option(
    "--queue", default=None, type=click.IntRange(0), help="Requests that may wait.  [default: 4 x slots]"
)
@click.option("--seed", default=0, show_default=True, type=int, help="Same seed, same request: same bytes.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help=f"Repeatable.  [default: {DEFAULT_MODEL}]"
)
@click.option(
    "--script", default="", metavar="WORDS", help="Script words for every request, e.g. 'interval=20ms'."
)
def sim(
    port: int, host: str, slots: int, queue: int | None, seed: int, models: tuple[str, ...], script: str
) -> None:
    """A deterministic OpenAI-compatible model server that fails as it is told.

    The script goes into the last user message: [[sim tokens=50 interval=20ms hang=after:10]].
    See docs/sim.md.
    """
    # Imported here: `inferencemesh --help` needs none of it.
    from inferencemesh.sim.script import ScriptError
    from inferencemesh.sim.server import SimServer

    names = tuple(dict.fromkeys(models or (DEFAULT_MODEL,)))
    try:
        server = SimServer(slots, seed, queue=queue, models=names, script=script)
    except ScriptError as error:
        raise click.BadParameter(str(error), param_hint="--script") from None
    try:
        _run(_serve(server, host, port, names))
    except OSError as error:
        click.echo(f"inferencemesh sim: {_explain(error, host, port)}", err=True)
        sys.exit(2)


async def _serve(server: SimServer, host: str, port: int, models: tuple[str, ...]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await server.start(host, port)
    address = f"[{host}]" if ":" in host else host
    click.echo(f"sim ready http://{address}:{server.port} model={','.join(models)}")
    sys.stdout.flush()
    await stop.wait()
    await server.close()


def _run(main: object) -> None:
    try:
        import uvloop
    except ImportError:  # not on every platform
        asyncio.run(main)  # type: ignore[arg-type]
    else:
        uvloop.run(main)  # type: ignore[arg-type]


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; choose another with --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user; choose one from 1024 up with --port"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


if __name__ == "__main__":
    sim()
