"""What is found out about backends before the gateway starts: their models, and slots that say `auto`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import orjson

from inferencemesh.runtime.build import upstream_of
from inferencemesh.runtime.http1.client import ConnectError, UpstreamLost
from inferencemesh.runtime.probes import fetch
from inferencemesh.runtime.upstream import Upstream
from inferencemesh.serving.process import StartError

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh

ASSUMED_SLOTS = 8  # for `serve --backend URL` without --slots: small enough for any engine's default
ASK_S = 3.0


async def resolve(mesh: Mesh) -> dict[str, int]:
    """The slots of each backend whose configuration says `auto`.

    Raises:
        StartError: an engine reports none, and the configuration gives no number.
    """
    found: dict[str, int] = {}
    for backend in mesh.backends:
        if backend.slots != "auto":
            continue
        upstream = upstream_of(mesh, backend)
        path = upstream.engine.slots_path
        if path is None:
            raise StartError(
                f"backend {backend.name}: `slots: auto` needs an engine that reports its slots, and the adapter "
                f"{upstream.engine.name} cannot ask; write the number that the model server was started with "
                "(vLLM --max-num-seqs, llama.cpp --parallel, Ollama OLLAMA_NUM_PARALLEL)"
            )
        try:
            status, body = await fetch(upstream, path, ASK_S)
            found[backend.name] = upstream.engine.slots(body)
        except (ConnectError, UpstreamLost, OSError, TimeoutError, ValueError, KeyError, TypeError) as lost:
            raise StartError(
                f"backend {backend.name}: its slots could not be asked for ({lost}); start it first, or write a number"
            ) from lost
        finally:
            await upstream.pool.close()
        if found[backend.name] < 1:
            raise StartError(
                f"backend {backend.name} reports {found[backend.name]} slots ({status}); write a number"
            )
    return found


async def from_backends(
    urls: Sequence[str],
    *,
    slots: int | None,
    models: Sequence[str],
    addresses: Mapping[str, Mapping[str, object]],
) -> tuple[Mesh, list[str]]:
    """A configuration for bare URLs, and lines that say what was found and assumed.

    `addresses` holds the sections `server` and `admin`, as the command line gives them.

    Every backend is asked for its models; all backends that name a model serve it.

    Raises:
        StartError: a URL is wrong, or no model is known.
    """
    from inferencemesh.config.model import Mesh
    from inferencemesh.config.problems import ConfigError

    count = slots or ASSUMED_SLOTS
    sections = {name: dict(section) for name, section in addresses.items()}
    told = f"{count} slots {'as told' if slots else 'assumed; say --slots N'}"
    lines: list[str] = []
    serving: dict[str, list[str]] = {}
    silent: list[str] = []
    try:
        bare = Mesh.from_backends(urls, slots=count)
        seen = [backend.url for backend in bare.backends]
        for url in seen:
            if seen.count(url) > 1:
                raise StartError(f"--backend {url} is given twice; give each backend once")
        for url, backend in zip(urls, bare.backends, strict=True):
            upstream = upstream_of(bare, backend)
            try:
                names = list(models) or await _models(upstream)
                lines.append(f"{backend.url}: {', '.join(names)}; {told}")
            except _Unasked as why:
                names = []
                silent.append(url)
                lines.append(f"{backend.url}: could not be asked for its models ({why}); {told}")
            finally:
                await upstream.pool.close()
            for name in names:
                serving.setdefault(name, []).append(url)
        if not serving:
            raise StartError(
                "\n".join([*lines, "no backend named a model; start the backends first, or say --model NAME"])
            )
        for url in silent:
            lines.append(f"{url} is taken to serve what the others serve")
            for served in serving.values():
                served.append(url)
        return Mesh.from_backends(urls, slots=count, models=serving, **sections), lines
    except ConfigError as error:
        raise StartError(str(error)) from error


class _Unasked(Exception):  # noqa: N818 - a reason, shown to the operator
    """Why a backend did not name its models."""


async def _models(upstream: Upstream) -> list[str]:
    try:
        status, body = await fetch(upstream, "/v1/models", ASK_S)
    except TimeoutError:
        raise _Unasked(f"no answer within {ASK_S:g} s") from None
    except (ConnectError, UpstreamLost, OSError) as lost:
        raise _Unasked(str(lost)) from lost
    if status != 200:
        raise _Unasked(f"/v1/models answered {status}")
    try:
        names = [str(entry["id"]) for entry in orjson.loads(body)["data"]]
    except (ValueError, KeyError, TypeError):
        raise _Unasked("/v1/models did not answer with a list of models") from None
    if not names:
        raise _Unasked("/v1/models lists no model")
    return names
