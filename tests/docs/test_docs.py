"""What the documents say is so: links, codes, metrics, fields, keys, and every command and example in them."""

from __future__ import annotations

import http.client
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from inferencemesh.config.load import load
from inferencemesh.config.model import Mesh
from inferencemesh.config.outline import entries
from inferencemesh.core.errors import ERRORS
from inferencemesh.core.events import RequestEnded, RequestRefused
from inferencemesh.core.outcome import Phase
from inferencemesh.telemetry.lines import request_fields
from tests.docs.pages import DOCS, PAGES, ROOT, Block, anchors, blocks, commands, links, prose, rows, section
from tests.docs.running import WITHIN_S, Running, running
from tests.simproc import sim_process

OPERATIONS = DOCS / "operations.md"
README = ROOT / "README.md"


# --- what is listed is complete, and nothing else is listed -------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT), f"{page.name}: {link} leaves the project"
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_error_code_has_a_section() -> None:
    page = DOCS / "troubleshooting.md"
    headings = set(re.findall(r"^### ([a-z_]+)$", page.read_text(), re.MULTILINE))
    assert headings == set(ERRORS)
    for code, spec in ERRORS.items():
        text = section(page, code)
        assert f"**{spec.status}" in text, f"{code}: the status is {spec.status}"
        assert ("x-should-retry: false" in text) == spec.never_retry, code


def test_the_log_fields_are_those_of_the_table() -> None:
    ended = RequestEnded(
        *(0.0, "id", "tenant", "model", None, 1, True, 200, Phase.COMPLETE, "ok", Phase.COMPLETE),
        *(0.0, None, None, 0.0, 0, 0, 0, None, None),
    )
    written = set(request_fields(ended)) - {"level", "event"}
    listed = {name for row in rows(section(OPERATIONS, "The request line")) for name in _ticked(row[0])}
    assert listed == written
    refused = RequestRefused(0.0, "id", "tenant", None, "queue_full", 503, 0.0)
    for name in set(request_fields(refused)) - {"at", "level", "event"}:
        assert f"`{name}`" in section(OPERATIONS, "The request line"), name


def test_notes_are_those_of_the_code() -> None:
    """A note that the code can write is explained, and none that it cannot."""
    package = ROOT / "src/inferencemesh"
    source = "".join(path.read_text() for path in [package / "wire/chat.py", *package.glob("runtime/*.py")])
    table = section(OPERATIONS, "The request line").split("| note | means |")[1]
    for name in {name for row in rows(table) for name in _ticked(row[0])}:
        assert f'"{name}"' in source, name
    for name in re.findall(r'notes\.append\("(\w+)"\)|_dropped\.add\("(\w+)"', source):
        assert any(part and f"`{part}`" in table for part in name), name


def test_keys_of_the_configuration_exist() -> None:
    """Every dotted key in the text stands in the schema."""
    known = {entry.path for entry in entries()}
    overridable = ("timeouts", "retries", "stream", "queue")
    for page in PAGES:
        for key in re.findall(r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+(?:\[\])?)+)(?::[^`]*)?`", prose(page)):
            head = key.partition(".")[0].removesuffix("[]")
            if head not in Mesh.model_fields:
                continue
            if key.startswith(tuple(f"models[].{name}." for name in overridable)):
                key = key.removeprefix("models[].").replace("queue.", "admission.queue.")
            assert key.removesuffix("[]") in known, f"{page.name}: {key}"


def test_the_named_tests_of_the_field_faults_exist() -> None:
    page = DOCS / "field-faults.md"
    ids = []
    for row in (row for part in page.read_text().split("\n## ")[1:] for row in rows(part)):
        ids.append(row[0])
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])
        assert named or row[-1] == "not covered yet", row
        for file, name in named:
            assert re.search(rf"^(async def|def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), (
                f"{row[0]}: {name}"
            )
    assert len(ids) == len(set(ids))


def _ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- YAML ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block", [block for page in PAGES for block in blocks(page, "yaml")], ids=lambda block: block.name
)
def test_yaml_blocks_are_valid_configuration(block: Block, tmp_path: Path) -> None:
    """As they stand, with a backend where there is none, and with digests and secret files in place of “…”."""
    load(_configuration(block, tmp_path))


@pytest.mark.parametrize(
    "block", [block for page in PAGES for block in blocks(page, "yml")], ids=lambda block: block.name
)
def test_other_yaml_blocks_are_yaml(block: Block) -> None:
    assert list(yaml.safe_load_all(block.text))


def test_the_example_is_valid_configuration() -> None:
    load(ROOT / "examples/mesh.yaml")


def _configuration(block: Block, folder: Path) -> Path:
    text = block.text
    number = 0
    while '"…"' in text:
        number += 1
        text = text.replace('"…"', f'"{sha256(str(number).encode()).hexdigest()}"', 1)
    (folder / "secret").write_text("a-secret")
    text = re.sub(r"/run/secrets/[\w-]+", str(folder / "secret"), text)
    document = yaml.safe_load(text) or {}
    if "backends" not in document:
        named = {name: 8 for model in document.get("models", ()) for name in model["backends"]} or {
            "gpu-a": 8
        }
        backends = [
            {"name": name, "url": f"http://{name}:8000", "engine": "openai", "slots": slots}
            for name, slots in named.items()
        ]
        text += "\n" + yaml.safe_dump({"backends": backends})
    path = folder / "mesh.yaml"
    path.write_text(text)
    return path


# --- commands -----------------------------------------------------------------------------------------------------

NOT_RUN = {
    "make run": "the demo itself is run below; make would install",
    "make test": "these are the tests",
    "make install": "needs the network",
    "make check": "continuous integration runs it",
    "make test-all": "these are the tests",
    "make prove-ci": "these are the tests",
    "make mutants": "continuous integration runs it, in make prove-ci",
    "make fuzz": "tests/fuzz has tests of its own",
    "make prove": "takes half an hour",
    "make compile": "takes minutes and a C compiler",
    "PYTHONPATH=build/compiled inferencemesh serve -c mesh.yaml": "needs what make compile makes; else as without",
    "python -m tests.prove.report": "takes half an hour",
    "python3 -m venv /opt/inferencemesh": "installs on the machine",
    "/opt/inferencemesh/bin/pip install .": "installs on the machine",
}


def _config_check(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inferencemesh", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "OK" in done.stdout


def _serve(arguments: list[str], folder: Path) -> None:
    with running([*arguments, "--port", "0", "--admin-port", "0"], folder) as gateway:
        assert gateway.event("ready")["public"].startswith("http://127.0.0.1:")


def _serve_backend(arguments: list[str], folder: Path) -> None:
    with sim_process() as sim:
        at = arguments.index("--backend") + 1
        assert urlsplit(arguments[at]).port == 8000
        arguments[at] = sim.url
        with running([*arguments, "--port", "0", "--admin-port", "0"], folder) as gateway:
            assert gateway.event("ready")["models"] == ["demo"]
            gateway.until(lambda: "32 slots as told" in gateway.said)


RUN: dict[str, Callable[[list[str], Path], None]] = {
    "inferencemesh config check": _config_check,
    "inferencemesh serve -c": _serve,
    "inferencemesh serve --backend": _serve_backend,
}

# Each once, wherever it stands; the curl line has a test of its own below.
COMMANDS = {
    command.partition(" #")[0].replace(".venv/bin/", "").rstrip(): f"{block.name}:{command[:40]}"
    for page in PAGES
    for block in blocks(page, "sh")
    for command in commands(block)
    if not command.startswith("curl ")
}


@pytest.mark.parametrize("command", COMMANDS, ids=COMMANDS.values())
def test_commands_work(command: str, tmp_path: Path) -> None:
    """Each command of a `sh` block is run with free ports, or stands in the list of those that are not."""
    arguments = [part for part in shlex.split(command) if not part.startswith("ARGS=")]
    name = " ".join(arguments)
    if name in NOT_RUN:
        return
    run = next((run for start, run in RUN.items() if " ".join(arguments).startswith(start)), None)
    assert run is not None, f"{name!r} is neither run nor in the list of what is not"
    _configuration(next(blocks(README, "yaml")), tmp_path)
    run(arguments[1:] if arguments[0] == "inferencemesh" else arguments, tmp_path)


# --- the demo -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("demo")
    with running(["demo", "--port", "0", "--admin-port", "0"], folder) as process:
        process.until(lambda: "Ctrl-C" in process.said)
        yield process


def _run_curl(command: str) -> str:
    arguments = shlex.split(command.replace("\\\n", ""))
    assert arguments[0] == "curl"
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    return done.stdout


def test_the_curl_line_of_the_readme_works_on_the_demo(demo: Running) -> None:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in commands(block)]
    (line,) = [line for line in lines if line.startswith("curl ")]
    assert "http://127.0.0.1:8080/" in line
    answer = _run_curl(line.replace("http://127.0.0.1:8080", demo.event("ready")["public"]))
    assert answer.endswith("data: [DONE]\n\n"), answer


def test_the_lines_that_the_demo_prints_work(demo: Running) -> None:
    """The curl line and the snippet for the Python SDK, as they are pasted."""
    snippet = re.search(r"^ +from openai .+?(?=\n\n)", demo.said, re.MULTILINE | re.DOTALL)
    assert snippet is not None, demo.said
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(snippet[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as sdk:
        curl = re.search(r"^ +(curl .+?\\\n.+)$", demo.said, re.MULTILINE)
        assert curl is not None, demo.said
        assert _run_curl(curl[1]).endswith("data: [DONE]\n\n")
        out, error = sdk.communicate(timeout=WITHIN_S)
    assert sdk.returncode == 0, error
    assert len(out) > 20


def test_the_metrics_table_is_the_exposition(demo: Running) -> None:
    """Every metric of ours is in the table with its type and labels, and the table holds no other."""
    curl = re.search(r"^ +(curl .+?\\\n.+)$", demo.said, re.MULTILINE)
    assert curl is not None, demo.said
    _run_curl(curl[1])  # so that there is something to see
    admin = urlsplit(demo.event("ready")["admin"])
    connection = http.client.HTTPConnection(admin.hostname or "", admin.port, timeout=WITHIN_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    ours = re.findall(r"^# TYPE inferencemesh_(\w+) (\w+)$", text, re.MULTILINE)
    exposed = {(name, kind) for name, kind in ours if not name.endswith("_created")}
    listed = {
        (_ticked(name)[0], kind): labels.split(", ")
        for name, kind, labels, _ in rows(section(OPERATIONS, "Metrics"))
    }
    assert set(listed) == exposed
    seen = 0
    for (name, _), labels in listed.items():
        for sample in re.findall(rf"^inferencemesh_{name}(?:_bucket)?\{{(.*)\}} ", text, re.MULTILINE):
            seen += 1
            assert set(re.findall(r'(\w+)="', sample)) - {"le"} == set(labels), name
    assert seen > 20
