"""`inferencemesh config`: check, show and describe the configuration; hash a key."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from inferencemesh.config.load import Loaded
    from inferencemesh.config.model import Mesh
    from inferencemesh.config.problems import ConfigError, Problem

EXIT_BAD_CONFIG = 2
MAX_KEY_BYTES = 8 * 1024  # more does not fit into a request's head

_file = click.option(
    "-c",
    "--config",
    "file",
    default="mesh.yaml",
    show_default=True,
    metavar="FILE",
    help="`-` is standard input.",
)


@click.group()
def config() -> None:
    """Check, show and describe the configuration."""


@config.command()
@_file
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(file: str, as_json: bool) -> None:
    """Validate a configuration; every problem with its line. Exits with 2 if there is one."""
    from inferencemesh.config.load import read
    from inferencemesh.config.problems import ConfigError

    try:
        loaded = read(file)
    except ConfigError as error:
        if as_json:
            click.echo(
                json.dumps(
                    {"file": file, "ok": False, "problems": _rows(error.problems), "warnings": []}, indent=2
                )
            )
        else:
            _report(error)
        sys.exit(EXIT_BAD_CONFIG)
    if as_json:
        click.echo(
            json.dumps(
                {"file": file, "ok": True, "problems": [], "warnings": _rows(loaded.warnings)}, indent=2
            )
        )
    else:
        _warn(loaded, file)
        click.echo(f"{file}: OK: {_summary(loaded.mesh)}")


@config.command()
def schema() -> None:
    """Print the JSON Schema of mesh.yaml, for editors."""
    from inferencemesh.config.outline import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@config.command()
@_file
def show(file: str) -> None:
    """Print the effective configuration as YAML: every key, references replaced, secrets masked."""
    from inferencemesh.config.load import read
    from inferencemesh.config.problems import ConfigError
    from inferencemesh.config.show import as_yaml

    try:
        loaded = read(file)
    except ConfigError as error:
        _report(error)
        sys.exit(EXIT_BAD_CONFIG)
    _warn(loaded, file)
    click.echo(as_yaml(loaded.mesh), nl=False)


@config.command("hash-key")
def hash_key() -> None:
    """Read a key from standard input, or ask for it, and print the hash that mesh.yaml holds.

    A key is never an argument: those are seen by everybody on the machine.
    """
    from inferencemesh.auth.keys import hash_key as hashed

    if sys.stdin.isatty():
        raw = str(click.prompt("Key", hide_input=True, err=True)).encode()
    else:
        raw = sys.stdin.buffer.read(MAX_KEY_BYTES + 3)
    key = raw.removesuffix(b"\n").removesuffix(b"\r")
    if not key:
        _refuse("no key: standard input is empty")
    if len(key) > MAX_KEY_BYTES:
        _refuse(f"the key is longer than {MAX_KEY_BYTES} bytes")
    if not all(0x21 <= byte <= 0x7E for byte in key):
        _refuse("the key holds blanks, line breaks or characters beyond ASCII; no request could carry it")
    if len(key) < 22:  # 128 bits of base64
        click.echo(
            "warning: the key is short; use at least 128 random bits, such as `openssl rand -hex 32`",
            err=True,
        )
    click.echo(hashed(key))


def _refuse(message: str) -> None:
    click.echo(f"inferencemesh config hash-key: {message}", err=True)
    sys.exit(EXIT_BAD_CONFIG)


def _report(error: ConfigError) -> None:
    click.echo(str(error), err=True)
    count = len(error.problems)
    click.echo(f"{error.file}: {count} problem{'' if count == 1 else 's'}", err=True)


def _warn(loaded: Loaded, file: str) -> None:
    for problem in loaded.warnings:
        click.echo(f"warning: {problem.render(file)}", err=True)


def _rows(problems: tuple[Problem, ...]) -> list[dict[str, object]]:
    return [{"line": p.line, "column": p.column, "path": p.path, "message": p.message} for p in problems]


def _summary(mesh: Mesh) -> str:
    tenants = [tenant.name for tenant in mesh.served_tenants]
    return (
        f"{_listed('backend', [b.name for b in mesh.backends])}, "
        f"{_listed('model', [m.name for m in mesh.models])}, "
        f"{_listed('tenant', tenants)}; "
        f"server {mesh.server.host}:{mesh.server.port}, admin {mesh.admin.host}:{mesh.admin.port}"
    )


def _listed(noun: str, names: list[str]) -> str:
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({shown})"
