from __future__ import annotations

import pytest

from inferencemesh.config.kinds import Choice, Duration, Flag, Kind, Number, RetryReason, Size, Whole, nearest
from inferencemesh.config.listeners import ShutdownWaiters
from inferencemesh.config.texts import Digest, Host, Network, Secret, SecretText, Text, Url

HTTP = Url(("http", "https"), strip="/v1")


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Whole(), "8080", 8080),  # as `${PORT}` gives it
        (Whole(maximum=65535), 0, 0),
        (Number(), "0.5", 0.5),
        (Number(), "1e-3", 0.001),
        (Flag(), "true", True),
        (Flag(), "FALSE", False),
        (Choice(ShutdownWaiters), "serve", "serve"),
        (Duration(zero=True), 0, 0.0),
        (Size(), "1KiB", 1024),
        (RetryReason(), "503", 503),
        (RetryReason(), "connect", "connect"),
        (Host(), "::1", "::1"),
        (Host(), "0.0.0.0", "0.0.0.0"),
        (Host(), "gateway.internal", "gateway.internal"),
        (Network(), "10.1.2.3/8", "10.0.0.0/8"),
        (Network(), "::1", "::1/128"),
        (HTTP, "http://h:8001/", "http://h:8001"),
        (HTTP, "http://h:8001/v1", "http://h:8001"),
        (HTTP, "https://h/base/v1/", "https://h/base"),
        (HTTP, "http://[::1]:8001", "http://[::1]:8001"),
        (Secret(), "sk-1", "sk-1"),
    ],
)
def test_what_is_read(kind: Kind, written: object, value: object):
    assert kind.read(written) == value


@pytest.mark.parametrize(
    ("kind", "written", "says"),
    [
        (Whole(minimum=1), 0, "at least 1"),
        (Whole(maximum=65535), 65536, "at most 65535"),
        (Whole(), True, "whole number"),
        (Whole(), 1.5, "whole number"),
        (Whole(), 1 << 60, "too large"),
        (Whole(), "x", "whole number"),
        (Number(), float("nan"), "finite"),
        (Number(), 10**400, "finite"),
        (Number(), False, "number"),
        (Number(positive=True), 0, "more than 0"),
        (Number(maximum=1), 1.1, "at most 1"),
        (Flag(), "yes", "true or false"),
        (Flag(), 1, "true or false"),
        (Choice(ShutdownWaiters), "serv", "did you mean `serve`"),
        (Choice(ShutdownWaiters), True, "one of serve, refuse"),
        (Duration(), 0, "longer than 0s"),
        (Size(minimum=1024), 1, "at least 1KiB"),
        (RetryReason(), 429, "full"),
        (RetryReason(), 404, "500 to 599"),
        (RetryReason(), "timeout", "`connect`"),
        (Text(), 7, "quotes"),
        (Text(), "", "empty"),
        (Text(), "a\nb", "line breaks"),
        (Host(), "", "address"),
        (Host(), "[::1]", "address"),
        (Host(), "h:80", "address"),
        (Host(), None, "address"),
        (Network(), "10.0.0.0/99", "network"),
        (Network(), 10, "network"),
        (HTTP, "h:8001", "http://"),
        (HTTP, "ftp://h", "http://"),
        (HTTP, "http://", "missing"),
        (HTTP, "http://h:0", "missing"),
        (HTTP, "http://h:99999", "not readable"),
        (HTTP, "http://[::1", "not readable"),
        (HTTP, "http://u:p@h", "must not hold a user"),
        (HTTP, "http://h/?a=b", "query"),
        (HTTP, "http://h#", "query"),
        (HTTP, "http://h h", "blanks"),
        (HTTP, 8001, "URL"),
        (Secret(), "", "null for none"),
        (Secret(), "a b", "blanks"),
        (Secret(), "schlüssel", "ASCII"),
        (Digest(), "A" * 64, "hash-key"),
        (Digest(), 5, "hash-key"),
    ],
)
def test_what_is_refused_and_how(kind: Kind, written: object, says: str):
    with pytest.raises(ValueError, match=says):
        kind.read(written)


@pytest.mark.parametrize("kind", [Digest(), Secret(), HTTP])
def test_a_secret_is_not_repeated_in_an_error(kind: Kind):
    with pytest.raises(ValueError, match="must") as caught:
        kind.read("http://user:hunter2@h/ hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_secret_does_not_show_in_its_repr():
    secret = SecretText("hunter2")
    assert "hunter2" not in repr({"token": secret})
    assert secret == "hunter2"
    assert Secret().show(secret) == "********"


def test_a_url_shows_without_its_credentials():
    redis = Url(("redis",), credentials=True)
    assert redis.show(redis.read("redis://:hunter2@h:6379/0")) == "redis://********@h:6379/0"


def test_the_nearest_word():
    assert nearest("wrokers", ["workers", "port"]) == "workers"
    assert nearest("xyz", ["workers"]) is None
