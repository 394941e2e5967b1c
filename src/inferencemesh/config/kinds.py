"""The kinds of value in the configuration: how each is read, printed, and described to editors.

A kind is the metadata of an `Annotated` field, so a field's type, its unit, its range, the words of its error and
its row in the reference come from one place. Here the base, numbers, flags and choices; text is in `texts`.
"""

# ruff: noqa: D102 - the methods are described in `Kind`

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from inferencemesh.config import values

Auto = Literal["auto"]
Json = dict[str, Any]

_FROM_ENVIRONMENT: Json = {"type": "string", "pattern": r"\$\{", "description": "taken from the environment"}


def nearest(word: str, known: list[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return close[0] if close else None


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """One kind of value. With `auto`, the word `auto` stands for “decided at run time”."""

    auto: bool = False

    @abstractmethod
    def read(self, value: object) -> object:
        """The value, or ValueError with what to write instead."""

    @abstractmethod
    def describe(self) -> Json:
        """The JSON Schema of what may be written."""

    @property
    def word(self) -> str:
        """The kind's name in the reference."""
        return "text"

    def show(self, value: Any) -> object:
        """The value as `read` would read it back; a secret is masked."""
        return value

    def _read(self, value: object) -> object:
        if self.auto and value == "auto":
            return value
        try:
            return self.read(value)
        except ValueError as error:
            if not self.auto:
                raise
            raise ValueError(f"{error}, or `auto`") from None

    def _show(self, value: object) -> object:
        return value if value is None or value == "auto" else self.show(value)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(self._show, when_used="json"),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        own = self.describe()
        choices = [*own["anyOf"]] if "anyOf" in own else [own]
        if self.auto:
            choices.append({"const": "auto"})
        if own.get("type") != "string":
            choices.append(_FROM_ENVIRONMENT)
        return choices[0] if len(choices) == 1 else {"anyOf": choices}


@dataclass(frozen=True, kw_only=True)
class Duration(Kind):
    """A duration; a float of seconds in the model."""

    zero: bool = False

    def read(self, value: object) -> float:
        seconds = values.read_duration(value)
        if seconds == 0 and not self.zero:
            raise ValueError("must be longer than 0s")
        return seconds

    def describe(self) -> Json:
        bound = {"minimum": 0} if self.zero else {"exclusiveMinimum": 0}
        return {
            "anyOf": [
                {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"},
                {"type": "number", **bound},
            ]
        }

    @property
    def word(self) -> str:
        return "duration"

    def show(self, value: float) -> str:
        return values.show_duration(value)


@dataclass(frozen=True, kw_only=True)
class Size(Kind):
    """A number of bytes; an int in the model."""

    minimum: int = 1

    def read(self, value: object) -> int:
        size_bytes = values.read_size(value)
        if size_bytes < self.minimum:
            raise ValueError(f"must be at least {values.show_size(self.minimum)}")
        return size_bytes

    def describe(self) -> Json:
        return {
            "anyOf": [
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([KMGTkmgt][iI]?)?[bB]?$"},
                {"type": "integer", "minimum": self.minimum},
            ]
        }

    @property
    def word(self) -> str:
        return "size"

    def show(self, value: int) -> str | int:
        return values.show_size(value) if value >= 1024 else value


@dataclass(frozen=True, kw_only=True)
class Whole(Kind):
    """A whole number in a range."""

    minimum: int = 0
    maximum: int | None = None

    def read(self, value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a whole number")
        if value < self.minimum:
            raise ValueError(f"must be at least {self.minimum}, not {value}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"must be at most {self.maximum}, not {value}")
        if value >= 1 << 53:
            raise ValueError("is too large")
        return value

    def describe(self) -> Json:
        bound = {} if self.maximum is None else {"maximum": self.maximum}
        return {"type": "integer", "minimum": self.minimum, **bound}

    @property
    def word(self) -> str:
        return "number"


@dataclass(frozen=True, kw_only=True)
class Number(Kind):
    """A finite number from 0 on, from a `minimum` on, or (`positive`) above 0; up to a `maximum`."""

    positive: bool = False
    minimum: float = 0
    maximum: float | None = None

    def read(self, value: object) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise ValueError("must be a number") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a number")
        number = float(value) if abs(value) < 1e18 else math.inf
        if not math.isfinite(number):
            raise ValueError("must be a finite number")
        if number < self.minimum or (self.positive and number == 0):
            bound = "more than 0" if self.positive else f"at least {self.minimum:g}"
            raise ValueError(f"must be {bound}, not {value}")
        if self.maximum is not None and number > self.maximum:
            raise ValueError(f"must be at most {self.maximum:g}, not {value}")
        return number

    def describe(self) -> Json:
        low = {"exclusiveMinimum": 0} if self.positive else {"minimum": self.minimum}
        high = {} if self.maximum is None else {"maximum": self.maximum}
        return {"type": "number", **low, **high}

    @property
    def word(self) -> str:
        return "number"

    def show(self, value: float) -> float | int:
        return int(value) if value.is_integer() else value


@dataclass(frozen=True, kw_only=True)
class Flag(Kind):
    """`true` or `false`."""

    def read(self, value: object) -> bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def describe(self) -> Json:
        return {"type": "boolean"}

    @property
    def word(self) -> str:
        return "boolean"


@dataclass(frozen=True)
class Choice(Kind):
    """One of the words (or numbers) of a `Literal` type."""

    of: object

    def read(self, value: object) -> object:
        known = {str(word): word for word in get_args(self.of)}
        text = str(value)
        if isinstance(value, int | str) and not isinstance(value, bool) and text in known:
            return known[text]
        message = f"must be one of {', '.join(known)}"
        meant = nearest(text, list(known)) if isinstance(value, str) else None
        raise ValueError(f"{message}; did you mean `{meant}`?" if meant else message)

    def describe(self) -> Json:
        return {"enum": list(get_args(self.of))}

    @property
    def word(self) -> str:
        return " \\| ".join(str(word) for word in get_args(self.of))


@dataclass(frozen=True, kw_only=True)
class RetryReason(Kind):
    """`connect`, or a 5xx status."""

    def read(self, value: object) -> str | int:
        if value == "connect":
            return "connect"
        text = str(value)
        if text == "429":
            raise ValueError(
                "429 means “full”, which is no failure: it always goes back to its line (contract B6)"
            )
        if isinstance(value, bool) or not (text.isdecimal() and 500 <= int(text) <= 599):
            raise ValueError("must be `connect` or a status from 500 to 599")
        return int(text)

    def describe(self) -> Json:
        return {"anyOf": [{"const": "connect"}, {"type": "integer", "minimum": 500, "maximum": 599}]}

    @property
    def word(self) -> str:
        return "`connect` or a status"
