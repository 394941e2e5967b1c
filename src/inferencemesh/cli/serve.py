"""`inferencemesh serve`: the gateway."""

from __future__ import annotations

import sys

import click

from inferencemesh.cli.options import addresses, dotted, load_mesh


@click.command()
@click.option(
    "-c", "--config", "path", type=click.Path(dir_okay=False), help="The configuration (mesh.yaml)."
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="URL",
    help="A model server, instead of a file; may be given several times.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="With --backend: how many requests each runs at once (8 if not said).",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="With --backend: a model's name, several times for several; else the backends are asked.",
)
@click.option("--host", help="Listen on this address instead of the configured one.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Listen on this port instead of the configured one."
)
@click.option(
    "--admin-port", type=click.IntRange(0, 65535), help="The admin port instead of the configured one."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes; more than one is not built yet.")
def serve(
    path: str | None,
    backends: tuple[str, ...],
    slots: int | None,
    models: tuple[str, ...],
    host: str | None,
    port: int | None,
    admin_port: int | None,
    workers: int | None,
) -> None:
    """Run the gateway until SIGTERM, SIGHUP or Ctrl-C."""
    from inferencemesh.serving.detect import from_backends, resolve
    from inferencemesh.serving.process import EXIT_USAGE, StartError, run
    from inferencemesh.serving.process import serve as serve_mesh

    if (path is None) == (not backends):
        raise click.UsageError(
            "give either a configuration with -c mesh.yaml, or backends with --backend URL"
        )
    if backends == () and (slots is not None or models):
        raise click.UsageError("--slots and --model go with --backend; with a file they stand in it")
    if workers is not None and workers > 1:
        raise click.UsageError("--workers above 1 is not built yet; start one process")

    sections = addresses(host, port, admin_port)

    async def main() -> int:
        remarks: list[str] = []
        if path is not None:
            mesh, remarks = load_mesh(path, dotted(sections))
        else:
            mesh, lines = await from_backends(backends, slots=slots, models=models, addresses=sections)
            for line in lines:
                click.echo(line, err=True)
        return await serve_mesh(mesh, slots=await resolve(mesh), remarks=remarks)

    try:
        code = run(main())
    except StartError as error:
        click.echo(f"inferencemesh: {error}", err=True)
        code = EXIT_USAGE
    sys.exit(code)
