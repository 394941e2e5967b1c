"""Engine adapters by name."""

from __future__ import annotations

from inferencemesh.runtime.engines.base import Engine
from inferencemesh.runtime.engines.openai import OpenAIEngine
from inferencemesh.runtime.engines.sim import SimEngine


def engine_named(name: str) -> Engine:
    """The adapter for `backends[].engine`; `auto` is the generic one.

    Raises:
        KeyError: no adapter of that name is built.
    """
    return _ENGINES[name]()


_ENGINES: dict[str, type[OpenAIEngine]] = {"auto": OpenAIEngine, "openai": OpenAIEngine, "sim": SimEngine}
