"""The command `inferencemesh`: a group whose subcommands are imported only when they are called."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import click

from inferencemesh import __version__

# Name → module; the command in it has the name of the command. In the order of the help.
COMMANDS = {
    "demo": "inferencemesh.cli.demo",
    "serve": "inferencemesh.cli.serve",
    "sim": "inferencemesh.cli.sim",
    "config": "inferencemesh.cli.config",
}


class LazyGroup(click.Group):
    """Imports a subcommand when it is needed; one whose module is not there is not listed."""

    def __init__(self, *args: Any, modules: dict[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the subcommands that are there."""
        return [
            name for name, module in self._modules.items() if importlib.util.find_spec(module) is not None
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of this name."""
        module = self._modules.get(cmd_name)
        if module is None or importlib.util.find_spec(module) is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{cmd_name} is not a command")
        return command


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="inferencemesh")
def main() -> None:
    """An inference gateway that bounds how much work it accepts and owns that work until it has ended."""
