"""Rules over more than one value: references, uniqueness, what must go together.

Each check yields the path to blame and a message that says what to write instead.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Iterator

from inferencemesh.config.kinds import nearest
from inferencemesh.config.model import MODEL_NAME, Mesh, is_loopback
from inferencemesh.config.problems import Path
from inferencemesh.config.section import Section
from inferencemesh.config.tenancy import ANONYMOUS

Found = Iterator[tuple[Path, str]]


def errors(mesh: Mesh) -> Found:
    """What makes this configuration unusable."""
    yield from _listeners(mesh)
    yield from _backends(mesh)
    yield from _models(mesh)
    yield from _tenants(mesh)
    yield from _classes(mesh)
    yield from _service(mesh)


def warnings(mesh: Mesh) -> Found:
    """What loads, but hardly is what was meant."""
    limits = mesh.server.limits
    if limits.buffered_bytes < limits.body_bytes:
        yield (
            ("server", "limits", "buffered_bytes"),
            "is less than `body_bytes`: larger bodies can never be read",
        )
    seen: dict[str, str] = {}
    for i, backend in enumerate(mesh.backends):
        other = seen.setdefault(backend.url, backend.name)
        if other != backend.name:
            yield (
                ("backends", i, "url"),
                f"is also the URL of `{other}`: the server may get the slots of both at once",
            )
    for i, backend in enumerate(mesh.backends):
        if backend.slots == "auto":
            yield (
                ("backends", i, "slots"),
                "`auto` is asked for at start, which fails if the engine reports none; a number is sure",
            )
    used = {name for model in mesh.models for name in model.backends}
    for i, backend in enumerate(mesh.backends):
        if backend.name not in used:
            yield ("backends", i, "name"), f"no model uses the backend `{backend.name}`"
    yield from _reserves(mesh)
    names = [name for model in mesh.models for name in (model.name, *model.aliases)]
    for i, tenant in enumerate(mesh.tenants):
        if not tenant.keys and not (tenant.name == ANONYMOUS and mesh.anonymous_allowed):
            yield ("tenants", i, "name"), f"nobody can be the tenant `{tenant.name}`: it has no key"
        for j, pattern in enumerate(tenant.models):
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                yield ("tenants", i, "models", j), f"`{pattern}` matches no model"


def _reserves(mesh: Mesh) -> Found:
    """Reserves that leave a model nothing for others who may use it."""
    slots = {backend.name: backend.slots for backend in mesh.backends if backend.slots != "auto"}
    for model in mesh.models:
        names = (model.name, *model.aliases)
        users = [
            (i, tenant.reserved)
            for i, tenant in enumerate(mesh.tenants)
            if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in tenant.models)
        ]
        others = mesh.anonymous_allowed or any(not reserved for _, reserved in users)
        if not others or not all(name in slots for name in model.backends):
            continue
        most, reserved = sum(slots[name] for name in model.backends), sum(held for _, held in users)
        if reserved >= most:
            yield (
                ("tenants", max(i for i, held in users if held), "reserved"),
                f"makes {reserved} reserved slots of those who may use the model `{model.name}`, which has {most}: "
                "while they wait for it nothing is left for others; reserve fewer, or give it more slots",
            )


def _listeners(mesh: Mesh) -> Found:
    server, admin = mesh.server, mesh.admin
    if not is_loopback(admin.host) and admin.token is None:
        yield (
            ("admin", "token"),
            f"is required because admin.host {admin.host} is not loopback; write `{{file: PATH}}` or `${{NAME}}`",
        )
    if server.port == admin.port != 0 and _overlap(server.host, admin.host):
        yield ("admin", "port"), f"is the port of `server` too ({server.port}); write another, such as 8081"


def _overlap(one: str, other: str) -> bool:
    return one == other or _is_any(one) or _is_any(other) or (is_loopback(one) and is_loopback(other))


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _backends(mesh: Mesh) -> Found:
    if not mesh.backends:
        yield ("backends",), "needs at least one backend"
    yield from _unique(((("backends", i, "name"), b.name) for i, b in enumerate(mesh.backends)), "backend")
    for i, backend in enumerate(mesh.backends):
        if backend.engine == "openai" and backend.slots == "auto":
            yield (
                ("backends", i, "slots"),
                "needs a number: an `openai` engine reports none; write how many requests the server runs at once",
            )
        if backend.tls.ca is not None and not backend.tls.verify:
            yield ("backends", i, "tls", "ca"), "has no use with `verify: false`; write one of the two"
        if backend.url.startswith("http:") and (backend.tls.ca is not None or not backend.tls.verify):
            yield ("backends", i, "tls"), "has no use with an http:// URL; write https:// or leave it out"


def _models(mesh: Mesh) -> Found:
    if not any(model.model_fields_set for model in mesh.models):  # made from the backends
        yield from _backends_as_models(mesh)
        return
    backends = [backend.name for backend in mesh.backends]
    names: dict[str, str] = {}
    for i, model in enumerate(mesh.models):
        own: list[tuple[Path, str]] = [(("models", i, "name"), model.name)]
        own += [(("models", i, "aliases", j), alias) for j, alias in enumerate(model.aliases)]
        for path, name in own:
            if name in names:
                yield path, f"`{name}` is already {names[name]}"
            elif path[-1] == "name":
                names[name] = f"the name of models[{i}]"
            else:
                names[name] = f"an alias of `{model.name}`"
    models = [model.name for model in mesh.models]
    for i, model in enumerate(mesh.models):
        if not model.backends:
            yield ("models", i, "backends"), "needs at least one backend"
        yield from _known((("models", i, "backends"), model.backends), backends, "backend")
        yield from _known((("models", i, "fallbacks"), model.fallbacks), models, "model")
        if model.name in model.fallbacks:
            yield ("models", i, "fallbacks", model.fallbacks.index(model.name)), "is the model itself"
        yield from _wide_keys(
            ("models", i, "queue"), model.queue, ("max_waiting_total", "max_waiting_bytes"), "admission.queue"
        )
        yield from _wide_keys(("models", i, "retries"), model.retries, ("budget",), "retries")


def _backends_as_models(mesh: Mesh) -> Found:
    for i, backend in enumerate(mesh.backends):
        if re.fullmatch(MODEL_NAME, backend.name) is None:
            yield (
                ("backends", i, "name"),
                "is also the name of a model, as `models` is left out, and must begin with a letter or digit",
            )


def _wide_keys(path: Path, override: Section | None, keys: Iterable[str], home: str) -> Found:
    for key in keys:
        if override is not None and key in override.model_fields_set:
            yield (*path, key), f"holds over all models; write it under `{home}`"


def _tenants(mesh: Mesh) -> Found:
    yield from _unique(((("tenants", i, "name"), t.name) for i, t in enumerate(mesh.tenants)), "tenant")
    classes = [cls.name for cls in mesh.classes]
    owners: dict[str, str] = {}
    for i, tenant in enumerate(mesh.tenants):
        if tenant.class_name not in classes:
            yield ("tenants", i, "class"), _no_such("class", tenant.class_name, classes)
        if tenant.name == ANONYMOUS and tenant.keys:
            yield (
                ("tenants", i, "keys"),
                "the tenant `anonymous` is that of callers without a key; leave them out",
            )
        for j, key in enumerate(tenant.keys):
            owner = owners.setdefault(key.sha256, tenant.name)
            if (owner, j) != (tenant.name, j) or key.sha256 in {k.sha256 for k in tenant.keys[:j]}:
                yield ("tenants", i, "keys", j, "sha256"), f"is already a key of the tenant `{owner}`"
    reserved = sum(tenant.reserved for tenant in mesh.tenants)
    slots = [backend.slots for backend in mesh.backends if backend.slots != "auto"]
    if len(slots) == len(mesh.backends) and reserved > sum(slots):
        last = max(i for i, tenant in enumerate(mesh.tenants) if tenant.reserved)
        yield (
            ("tenants", last, "reserved"),
            f"all tenants together reserve {reserved} slots and the backends have {sum(slots)}; reserve fewer",
        )
    for i, tenant in enumerate(mesh.tenants):
        if tenant.max_running is not None and tenant.reserved > tenant.max_running:
            yield ("tenants", i, "reserved"), f"is more than its own `max_running` ({tenant.max_running})"
    if mesh.anonymous == "deny" and not mesh.tenants:
        yield (
            ("anonymous",),
            "`deny` without `tenants` leaves nobody who may call; add a tenant or write `auto`",
        )


def _classes(mesh: Mesh) -> Found:
    if not mesh.classes:
        yield ("classes",), "needs at least one class; leave it out for high, normal and low"
    yield from _unique(((("classes", i, "name"), c.name) for i, c in enumerate(mesh.classes)), "class")
    fairness = mesh.admission.fairness
    if fairness.strict and fairness.floor * len(mesh.classes) > 1:
        yield (
            ("admission", "fairness", "floor"),
            f"leaves the most urgent class less than the others; with {len(mesh.classes)} classes write at most "
            f"{1 / len(mesh.classes):.3g}",
        )
    for i, cls in enumerate(mesh.classes):
        wide = ("max_waiting_total", "max_waiting_bytes")
        yield from _wide_keys(("classes", i, "queue"), cls.queue, wide, "admission.queue")
    for i in range(1, len(mesh.classes)):
        if mesh.classes[i].offset < mesh.classes[i - 1].offset:
            yield (
                ("classes", i, "offset"),
                f"is less than that of `{mesh.classes[i - 1].name}` before it; the first class is the most urgent",
            )


def _service(mesh: Mesh) -> Found:
    partition = mesh.coordination.partition
    if partition.index >= partition.of:
        yield (
            ("coordination", "partition", "index"),
            f"must be less than `of` ({partition.of}); it counts from 0",
        )
    for name, bounds in mesh.telemetry.buckets.items():
        if list(bounds) != sorted(set(bounds)):
            yield ("telemetry", "buckets", name), "must be ascending, each bound once"


def _unique(named: Iterable[tuple[Path, str]], what: str) -> Found:
    seen: set[str] = set()
    for path, name in named:
        if name in seen:
            yield path, f"there is another {what} `{name}`; names are unique"
        seen.add(name)


def _known(named: tuple[Path, tuple[str, ...]], known: list[str], what: str) -> Found:
    path, names = named
    for j, name in enumerate(names):
        if name not in known:
            yield (*path, j), _no_such(what, name, known)
        elif name in names[:j]:
            yield (*path, j), f"`{name}` is named twice"


def _no_such(what: str, name: str, known: list[str]) -> str:
    known = list(dict.fromkeys(known))
    meant = nearest(name, known)
    if meant:
        return f"there is no {what} `{name}`; did you mean `{meant}`?"
    return f"there is no {what} `{name}`; there {'is' if len(known) == 1 else 'are'} {', '.join(known[:10]) or 'none'}"
