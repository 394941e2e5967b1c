"""`inferencemesh demo`: gateway, simulated model server and dashboard in one process."""

from __future__ import annotations

import sys

import click

MODEL = "demo"
SLOTS = 8


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="The gateway's port."
)
@click.option(
    "--admin-port",
    default=8081,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The dashboard's port.",
)
@click.option("--storm", is_flag=True, help="Keep a mixed load running, so that the page lives.")
def demo(host: str, port: int, admin_port: int, storm: bool) -> None:
    """Try the gateway without a GPU and without a file: its model is a simulator."""
    from inferencemesh.config.load import from_document
    from inferencemesh.serving.gateway import Gateway
    from inferencemesh.serving.process import EXIT_USAGE, StartError, run
    from inferencemesh.serving.process import serve as serve_mesh
    from inferencemesh.serving.storm import storm as run_storm
    from inferencemesh.sim.server import SimServer

    async def main() -> int:
        sim = SimServer(slots=SLOTS, seed=1, models=[MODEL], default_interval_s=0.04, default_tokens=60)
        await sim.start("127.0.0.1", 0)
        try:
            mesh = from_document(
                {
                    "server": {"host": host, "port": port},
                    "admin": {"port": admin_port},
                    "backends": [
                        {
                            "name": "simulator",
                            "url": f"http://127.0.0.1:{sim.port}",
                            "engine": "sim",
                            "slots": SLOTS,
                        }
                    ],
                    "models": [{"name": MODEL, "backends": ["simulator"], "queue": {"max_waiting": 16}}],
                    "tenants": [
                        {"name": name, "keys": [{"sha256": _sha256(f"demo-{name}")}], "weight": weight}
                        for name, weight in (("red", 1), ("green", 1), ("blue", 2))
                    ],
                    "anonymous": "allow",
                }
            )

            async def beside(gateway: Gateway, admin_url: str) -> None:
                click.echo(welcome(host, gateway.port, admin_url), err=True)
                if storm:
                    await run_storm(gateway.port, MODEL)

            return await serve_mesh(mesh, simulator=True, beside=beside)
        finally:
            await sim.close()

    try:
        code = run(main())
    except StartError as error:
        click.echo(f"inferencemesh: {error}", err=True)
        code = EXIT_USAGE
    sys.exit(code)


def welcome(host: str, port: int, admin_url: str) -> str:
    """What the demo prints when it is ready: lines that work when they are pasted."""
    base = f"http://{host if host not in ('0.0.0.0', '::') else '127.0.0.1'}:{port}"  # noqa: S104 - compared
    return f"""
InferenceMesh demo. The model is a simulator, not a GPU.

  curl -N {base}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="demo-green")
  for part in client.chat.completions.create(model="{MODEL}", stream=True,
                                             messages=[{{"role": "user", "content": "Hello"}}]):
      print(part.choices[0].delta.content or "", end="", flush=True)

  dashboard  {admin_url}/        metrics  {admin_url}/metrics        Ctrl-C ends it
"""


def _sha256(key: str) -> str:
    from hashlib import sha256

    return sha256(key.encode()).hexdigest()
