from __future__ import annotations

import pytest

from inferencemesh.auth.tenants import Tenant
from inferencemesh.core.errors import MeshError

OFFSETS_S = {"high": 0.0, "normal": 5.0, "low": 30.0}


@pytest.mark.parametrize(
    ("patterns", "model", "may"),
    [
        (("*",), "org/model:7b", True),
        (("llama-*",), "llama-3", True),
        (("llama-*",), "Llama-3", False),
        (("llama-?",), "llama-33", False),
        (("a", "b"), "b", True),
        ((), "a", False),
        (("llama",), "llama-3", False),
        (("[ab]x",), "bx", True),
    ],
)
def test_models_are_allowed_by_wildcards(patterns: tuple[str, ...], model: str, may: bool):
    assert Tenant("t", patterns).may_use(model) is may


def test_one_name_that_matches_opens_all_names_of_the_model():
    tenant = Tenant("t", ("fast",)).knowing([("m", "fast", "f"), ("n", "slow")])
    assert [tenant.may_use(name) for name in ("m", "fast", "f", "n", "slow")] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("own", "asked", "offset_s"),
    [
        ("normal", None, 5.0),
        ("normal", "normal", 5.0),
        ("normal", "low", 30.0),
        ("high", "high", 0.0),
        ("high", "low", 30.0),
    ],
)
def test_a_request_may_be_less_urgent(own: str, asked: str | None, offset_s: float):
    assert Tenant("t", class_name=own, offsets_s=OFFSETS_S).class_of(asked) == (asked or own, offset_s)


@pytest.mark.parametrize(
    ("own", "asked"), [("normal", "high"), ("low", "normal"), ("high", "none"), ("high", "")]
)
def test_a_request_may_not_be_more_urgent_nor_of_a_class_that_is_not_there(own: str, asked: str):
    with pytest.raises(MeshError, match="x-mesh-class") as caught:
        Tenant("t", class_name=own, offsets_s=OFFSETS_S).class_of(asked)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "x-mesh-class")
    assert own in caught.value.message
