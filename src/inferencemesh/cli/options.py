"""What several commands share: loading a configuration, and addresses given on the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh


def load_mesh(path: str, overrides: dict[str, object]) -> tuple[Mesh, list[str]]:
    """The configuration of a file, and what is odd about it; prints what is wrong with it and exits with 2."""
    from inferencemesh.config.load import read
    from inferencemesh.config.problems import ConfigError

    try:
        loaded = read(path, overrides=overrides)
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    return loaded.mesh, [problem.render(path) for problem in loaded.warnings]


def addresses(host: str | None, port: int | None, admin_port: int | None) -> dict[str, dict[str, object]]:
    """The sections `server` and `admin` as far as the command line gives them."""
    server: dict[str, object] = {}
    if host is not None:
        server["host"] = host
    if port is not None:
        server["port"] = port
    admin: dict[str, object] = {"port": admin_port} if admin_port is not None else {}
    return {name: section for name, section in (("server", server), ("admin", admin)) if section}


def dotted(sections: dict[str, dict[str, object]]) -> dict[str, object]:
    """Sections as overrides by dotted key."""
    return {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
