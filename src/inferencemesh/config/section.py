"""The base of every section of the configuration."""

from __future__ import annotations

from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Immutable; an unknown key is an error; a section or list that is left empty (null) has its default.

    So `tenants:` with every line below it commented out is the same as no `tenants` at all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        empty = {key for key, value in data.items() if value is None}
        if empty:
            for name, field in cls.model_fields.items():
                key = field.alias or name
                if key in empty and not _is_container(field.annotation):
                    empty.discard(key)
            data = {key: value for key, value in data.items() if key not in empty or key not in cls._keys()}
        return data

    @classmethod
    def _keys(cls) -> set[str]:
        return {field.alias or name for name, field in cls.model_fields.items()}


def _is_container(annotation: Any) -> bool:
    """Whether the type is a section, list or mapping that cannot itself be null."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return get_origin(annotation) in (tuple, dict)
