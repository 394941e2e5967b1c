from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferencemesh.admin.app import admin_app, dashboard_files, metrics_app
from tests.admin.fakes import FakeView, ask

TOKEN = "a-token-of-some-length"
OPEN = ["/", "/health", "/static/app.js", "/static/style.css"]
CLOSED = ["/api/state", "/api/requests", "/metrics", "/api/nothing"]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_metrics_are_plain_text_by_default_and_openmetrics_when_asked_for():
    app = admin_app(FakeView())
    plain = ask(app, "/metrics")
    assert plain.status_code == 200
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(plain.text)}
    assert "inferencemesh_requests" in names
    assert plain.headers["content-encoding"] == "gzip"
    modern = ask(app, "/metrics", {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    odd = ask(
        app, "/metrics", {"accept": "application/openmetrics-text; version=x", "accept-encoding": "identity"}
    )
    assert odd.status_code == 200
    assert "content-encoding" not in odd.headers


def test_state_and_requests_are_json():
    app = admin_app(FakeView())
    state = ask(app, "/api/state")
    assert state.headers["content-type"] == "application/json"
    assert state.json()["totals"]["accepted"] == 50
    assert ask(app, "/api/requests").json()["requests"][0]["id"] == "req-1"


def test_health_says_whether_and_not_why():
    assert ask(admin_app(FakeView()), "/health").json() == {"status": "ready"}
    degraded = ask(admin_app(FakeView(reasons=["backend gpu-b is down"])), "/health")
    assert (degraded.status_code, degraded.json()) == (200, {"status": "degraded"})
    ending = ask(admin_app(FakeView(ready=False, reasons=["shutting down"])), "/health")
    assert (ending.status_code, ending.json()) == (503, {"status": "not_ready"})


@pytest.mark.parametrize("path", OPEN)
def test_the_page_and_health_need_no_token(path: str):
    assert ask(admin_app(FakeView(), TOKEN), path).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
def test_numbers_and_names_need_the_token(path: str):
    app = admin_app(FakeView(), TOKEN)
    wrong = [
        {},
        bearer("x" + TOKEN),
        bearer(TOKEN[:-1]),
        bearer(""),
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"x-api-key": TOKEN},
    ]
    for headers in wrong:
        refused = ask(app, path, headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_token"
        assert refused.headers["www-authenticate"].startswith("Bearer")
    assert ask(app, f"{path}?token={TOKEN}").status_code == 401
    assert ask(app, path, bearer(TOKEN)).status_code in (200, 404)


def test_metrics_may_be_opened_alone():
    app = admin_app(FakeView(), TOKEN, open_metrics=True)
    assert ask(app, "/metrics").status_code == 200
    assert ask(app, "/api/state").status_code == 401
    alone = metrics_app(FakeView(), host="0.0.0.0")
    assert ask(alone, "/metrics", base="http://scrape.example:9090").status_code == 200
    assert ask(alone, "/api/state").status_code == 404


@pytest.mark.parametrize(
    "base",
    [
        "http://localhost:8081",
        "http://127.0.0.1",
        "http://127.8.8.8:1",
        "http://[::1]:8081",
        "http://LOCALHOST:8081",
    ],
)
def test_loopback_names_are_answered(base: str):
    assert ask(admin_app(FakeView()), "/api/state", base=base).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:8081",
        "127.0.0.1.evil.example",
        "10.0.0.1:8081",
        "",
        "[::2]:8081",
    ],
)
def test_a_rebound_name_is_refused_on_loopback(host: str):
    for path in (*OPEN, *CLOSED):
        refused = ask(admin_app(FakeView(), TOKEN), path, {"host": host, **bearer(TOKEN)})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "forbidden_host"


def test_two_hosts_are_refused_and_other_binds_need_a_token():
    view = FakeView()
    with pytest.raises(ValueError, match="token is required"):
        admin_app(view, None, host="0.0.0.0")
    with pytest.raises(ValueError, match="empty"):
        admin_app(view, "  ")
    public = admin_app(view, TOKEN, host="0.0.0.0")
    assert ask(public, "/api/state", bearer(TOKEN), base="http://mesh.example:8081").status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/api/state", "/api/nothing", "/static/app.js"])
def test_every_answer_carries_the_security_headers(path: str):
    for headers in ({}, bearer(TOKEN), {"host": "evil.example"}):
        answer = ask(admin_app(FakeView(), TOKEN), path, headers)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


def test_errors_are_json_and_say_nothing_of_the_inside():
    app = admin_app(FakeView())
    missing = ask(app, "/api/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_path")
    posted = ask(app, "/api/state", method="POST")
    assert (posted.status_code, posted.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in posted.headers["allow"]
    broken = FakeView()
    broken.fail_after = 0
    failed = ask(admin_app(broken), "/api/state")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal")
    assert "bug that no caller" not in failed.text


def test_a_page_of_another_origin_may_not_post():
    app = admin_app(FakeView())
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert ask(app, "/api/state", headers, method="POST").status_code == 403
    own = {"origin": "http://127.0.0.1:8081", "sec-fetch-site": "same-origin"}
    assert ask(app, "/api/state", own, method="POST").status_code == 405


def test_head_is_answered_without_a_body():
    assert ask(admin_app(FakeView(), TOKEN), "/api/state", method="HEAD").content == b""
    assert ask(admin_app(FakeView()), "/", method="HEAD").status_code == 200


def test_the_page_asks_nobody_else_and_holds_no_inline_code():
    files = dashboard_files()
    assert {"index.html", "app.js", "style.css"} <= set(files)
    for name, (content, _) in files.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[\w.-]+\.\w", text), name
        for danger in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "@import",
            "url(",
        ):
            assert danger not in text, f"{danger} in {name}"
    page = files["index.html"][0].decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert "<style" not in page
    assert not re.search(r"\s(?:style|on\w+)=", page)
    wanted = set(re.findall(r"""(?:src|href)="/static/([^"]+)""", page))
    for script in ("app.js", "panels.js", "trends.js"):
        wanted |= set(re.findall(r"""from "\./([^"]+)""", files[script][0].decode()))
    assert wanted <= set(files)


def test_static_files_are_served_with_their_types():
    app = admin_app(FakeView())
    for name, (content, media_type) in dashboard_files().items():
        path = "/" if name == "index.html" else f"/static/{name}"
        answer = ask(app, path)
        assert (answer.content, answer.headers["content-type"]) == (content, media_type)
    for path in ("/static/__init__.py", "/static/../app.py", "/static/%2e%2e/app.py", "/static/"):
        assert ask(app, path).status_code == 404
