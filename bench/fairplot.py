"""The picture of a fairness run. Needs matplotlib: `pip install 'inferencemesh[bench]'`.

python -m bench.fairplot fairness.json FILE.svg
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

SHOWN = ("fifo", "sfq")
LEAST_S = 0.003  # waits below are drawn as this
COLOURS = {"long": "#7a93b8", "short": "#7aa68a", "double": "#8a5ba8", "light": "#d9743f"}
WIDTHS = {"long": 4.0, "short": 2.4, "double": 1.0, "light": 1.6}  # curves that coincide can be told apart


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw into `file`; its ending chooses the format. Above: service by weight; below: waits.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise SystemExit(
            "matplotlib is not installed, so there is no picture: pip install 'inferencemesh[bench]'"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: small
    matplotlib.rcParams["svg.hashsalt"] = "fairness"  # the same figures give the same file
    matplotlib.rcParams["font.size"] = 8
    matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana"]
    plt = importlib.import_module("matplotlib.pyplot")

    figure, axes = plt.subplots(2, len(SHOWN), figsize=(8.0, 5.4), sharey="row", squeeze=False)
    for column, policy in enumerate(SHOWN):
        run = result["policies"][policy]
        above, below = axes[0][column], axes[1][column]
        for name, one in run["tenants"].items():
            label = f"{name}, weight {one['weight']:g}"
            points = one["curve"]
            step_s = run["seconds"] / (len(points) - 1)
            look = {"color": COLOURS[name], "lw": WIDTHS[name]}
            above.plot([n * step_s for n in range(len(points))], points, label=label, **look)
            waits = [max(wait, LEAST_S) for wait in one["waits_s"]]
            below.plot(waits, [(n + 1) / len(waits) for n in range(len(waits))], **look)
        above.set_title(f"policy: {policy}", fontsize=10)
        above.set_xlabel("seconds")
        below.set_xscale("log")
        below.set_xlim(LEAST_S, 30.0)
        below.set_xticks([0.01, 0.1, 1.0, 10.0], ["0.01", "0.1", "1", "10"])
        below.minorticks_off()
        below.set_ylim(0.0, 1.02)
        below.set_xlabel("wait in the line, seconds")
    axes[0][0].set_ylabel("slot-seconds ÷ weight")
    axes[1][0].set_ylabel("part of requests that waited\nno longer")
    axes[0][0].legend(frameon=False, loc="upper left")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(visible=True, color="#e4e4e4", lw=0.5)
    figure.tight_layout()
    figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
    if file.suffix == ".svg":
        file.write_text(_short(file.read_text()))


def _short(svg: str) -> str:
    """The same picture in fewer bytes: a tenth of a point is enough."""
    svg = re.sub(r"(?<![>\d.])\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    return re.sub(r"\n\s*", "\n", svg)


def main() -> None:
    """Entry of `python -m bench.fairplot`."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m bench.fairplot fairness.json FILE.svg")
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
