"""The schema, the example and the JSON Schema hold the same keys, and say the same defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from inferencemesh.config import load
from inferencemesh.config.outline import entries, json_schema, keys_of, section_at
from inferencemesh.config.policies import Queue
from inferencemesh.config.show import as_document
from inferencemesh.config.yamlmap import read_yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"


def keys_in(value: Any, path: str = "") -> set[str]:
    found: set[str] = set()
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else key
            found |= {here} | keys_in(item, here)
    elif isinstance(value, list):
        for item in value:
            found |= keys_in(item, f"{path}[]")
    return found


def test_every_key_of_the_example_is_in_the_schema_and_the_other_way_round():
    example = keys_in(read_yaml(EXAMPLE.read_bytes(), "example").data)
    schema = {entry.path for entry in entries()}
    overrides = {entry.path for entry in entries() if entry.override and entry.path.startswith("models[].")}
    assert example == schema - overrides
    assert all(f"`{path.rpartition('.')[2]}`" in EXAMPLE.read_text() for path in overrides)


def test_the_default_of_every_key_is_the_one_that_the_example_shows():
    written: Any = read_yaml(EXAMPLE.read_bytes(), "example").data
    effective = as_document(load(EXAMPLE, environ={}))
    for key, section in written.items():
        if key in (
            "server",
            "admin",
            "admission",
            "timeouts",
            "retries",
            "stream",
            "coordination",
            "telemetry",
        ):
            assert leaves(section) == leaves(effective[key]), key


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {p: v for key, item in value.items() for p, v in leaves(item, f"{path}.{key}").items()}
    return {path: value}


def test_every_key_has_a_description_that_is_a_sentence():
    for entry in entries():
        description = entry.field.description
        assert description, entry.path
        assert description.endswith("."), entry.path
        assert entry.section or entry.kind or re.match(r"tuple|dict", str(entry.type)), entry.path


def test_the_section_at_a_path():
    assert section_at(("admission", "queue")) is Queue
    assert section_at(("models", 3, "queue")) is Queue
    assert section_at(("nowhere", "queue")) is None


def test_the_json_schema_describes_every_key_and_gives_its_default():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["backends"]
    server = schema["$defs"]["Server"]["properties"]
    assert server["shutdown_grace"]["default"] == "300s"
    assert schema["$defs"]["ServerLimits"]["properties"]["header_bytes"]["default"] == "32KiB"
    assert "class" in schema["$defs"]["Tenant"]["properties"]
    for key, entry in keys_of(load(EXAMPLE, environ={}).server.__class__).items():
        assert server[key]["description"] == entry.field.description


def test_the_json_schema_accepts_the_example_and_refuses_what_the_loader_refuses():
    schema = json_schema()
    written: Any = read_yaml(EXAMPLE.read_bytes(), "example").data
    assert accepts(schema, schema, written)
    assert not accepts(schema, schema, {**written, "sever": {}})
    assert not accepts(schema, schema, {**written, "server": {"port": 65536}})
    assert not accepts(schema, schema, {**written, "timeouts": {"idle": "soon"}})
    assert not accepts(schema, schema, {key: value for key, value in written.items() if key != "backends"})
    assert accepts(
        schema, schema, {**written, "server": {"port": "${PORT}"}, "admin": {"token": {"file": "x"}}}
    )


def accepts(root: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    """The part of JSON Schema that our schema uses."""
    if "$ref" in schema and not accepts(root, root["$defs"][schema["$ref"].rpartition("/")[2]], value):
        return False
    if "anyOf" in schema and not any(accepts(root, option, value) for option in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    types = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    of = schema.get("type")
    if of in types and not isinstance(value, types[of]):
        return False
    if of in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int if of == "integer" else (int, float)):
            return False
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            return False
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            return False
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return False
    if of == "array":
        return all(accepts(root, schema["items"], item) for item in value)
    if of == "object":
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        if any(key not in value for key in schema.get("required", [])):
            return False
        return all(
            accepts(root, known[key], item)
            if key in known
            else extra is True or (extra and accepts(root, extra, item))
            for key, item in value.items()
        )
    return True
