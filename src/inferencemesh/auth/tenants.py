"""What a tenant may do: which models it may use, and how urgent its requests may be."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from inferencemesh.core.errors import MeshError

ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant as the data path sees it.

    `models` are wildcards over names. `class_name` is what a request has that names no class, and the most urgent
    that it may name; `offsets_s` holds every class with its offset in seconds, the most urgent first.
    """

    name: str
    models: tuple[str, ...] = ("*",)
    class_name: str = "normal"
    offsets_s: Mapping[str, float] = field(default_factory=dict)
    also: frozenset[str] = frozenset()  # names that it may use because another name of the same model matched

    def may_use(self, model: str) -> bool:
        """Whether it may use the model of this name."""
        return model in self.also or any(fnmatch.fnmatchcase(model, pattern) for pattern in self.models)

    def knowing(self, models: Iterable[tuple[str, ...]]) -> Tenant:
        """The tenant with its `models` applied to each model's name and aliases: one that matches opens all."""
        also = frozenset(name for names in models if any(map(self.may_use, names)) for name in names)
        return Tenant(self.name, self.models, self.class_name, self.offsets_s, also)

    def class_of(self, asked: str | None) -> tuple[str, float]:
        """The class of a request, and by how many seconds it stands later in the tenant's line (contract D6).

        Raises:
            MeshError: `invalid_request`, there is no such class, or it is more urgent than the tenant's own.

        """
        offsets = self.offsets_s
        if asked is None or asked == self.class_name:
            return self.class_name, offsets.get(self.class_name, 0.0)
        allowed = list(offsets)
        if self.class_name in offsets:
            allowed = allowed[allowed.index(self.class_name) :]
        if asked not in allowed:
            known = ", ".join(allowed)
            message = f"x-mesh-class must be one of the classes that this tenant may ask for: {known}"
            raise MeshError("invalid_request", message, param="x-mesh-class")
        return asked, offsets[asked]
