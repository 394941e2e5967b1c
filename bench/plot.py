"""Bars of a run's figures, one panel a scenario. Needs matplotlib: `pip install 'inferencemesh[bench]'`.

python -m bench.plot RESULT.json FILE.svg
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from bench.summary import COMPILED, OURS, SHOWN

COLOURS = {
    "direct": "#b8b8b8",
    "nginx": "#7aa68a",
    "haproxy": "#7a93b8",
    "envoy": "#a98ab8",
    OURS: "#d9743f",
    COMPILED: "#b5541f",
}


def panels(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What is drawn: for each scenario a title, a unit, and each peer's median with its least value."""
    found = []
    for scenario, rows in result["summary"].items():
        bars = []
        for peer, row in rows.items():
            values = row["figures"].get(SHOWN[scenario])
            if values is not None and not (peer == "direct" and SHOWN[scenario] != "cpu_us"):
                bars.append({"peer": peer, "median": values["median"], "least": values["min"]})
        about = result["scenarios"][scenario]
        if bars:
            found.append({"title": about["title"], "unit": about["unit"], "bars": bars})
    return found


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw into `file`; its ending chooses the format.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit(
            "matplotlib is not installed: pip install 'inferencemesh[bench]', or leave --plot away"
        ) from None
    matplotlib.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")

    shown = panels(result)
    columns = min(4, len(shown)) or 1
    lines = -(-len(shown) // columns) or 1
    figure, axes = plt.subplots(lines, columns, figsize=(3.4 * columns, 2.5 * lines), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, shown, strict=False):
        names = [bar["peer"] for bar in panel["bars"]]
        medians = [bar["median"] for bar in panel["bars"]]
        below = [max(0.0, bar["median"] - bar["least"]) for bar in panel["bars"]]
        places = range(len(names))
        axis.barh(places, medians, color=[COLOURS.get(name, "#888888") for name in names], height=0.7)
        axis.errorbar(medians, places, xerr=[below, [0.0] * len(below)], fmt="none", ecolor="#404040", lw=0.8)
        axis.set_yticks(places, names, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(panel["title"], fontsize=9)
        axis.set_xlabel(f"{panel['unit']}, median (line: least)", fontsize=7)
        axis.tick_params(axis="x", labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    plt.close(figure)


def main() -> None:
    """Entry of `python -m bench.plot`."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m bench.plot RESULT.json FILE.svg")
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
