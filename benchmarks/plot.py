"""A picture of the steady table: how often funcgrad's time goes into that of each peer, by workload."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib

from .frontier import Spot
from .held_out import HELD_OUT
from .steady import PEERS, Result, ratio

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

COLOURS = dict(zip(PEERS, ("#8c8c8c", "#c7a252", "#c0504d", "#4f81bd"), strict=True))


def save(results: Sequence[Result], path: str) -> None:
    """One panel per number of threads, saved as the suffix of ``path`` says (png, svg)."""
    threads = sorted({r["threads"] for r in results})
    rows = max(sum(r["threads"] == n for r in results) for n in threads)
    figure, panels = plt.subplots(
        1, len(threads), figsize=(6 * len(threads), 1.5 + 0.35 * rows), sharey=True, squeeze=False
    )
    held_out = {w.name for w in HELD_OUT}
    for panel, count in zip(panels[0], threads, strict=True):
        shown = [r for r in results if r["threads"] == count]
        for peer in PEERS:
            points = [(value, i) for i, r in enumerate(shown) if (value := ratio(r, peer)) is not None]
            if points:
                panel.scatter(*zip(*points, strict=True), label=peer, color=COLOURS[peer], s=28)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_yticks(range(len(shown)), [r["name"] + "*" * (r["name"] in held_out) for r in shown])
        panel.grid(alpha=0.3)
        panel.set_title(f"{count} thread{'s' * (count > 1)}")
        panel.set_xlabel("time ÷ funcgrad's (right of 1: funcgrad is faster)")
    panels[0][0].invert_yaxis()
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), fontsize="small", loc="lower left", ncols=len(PEERS), frameon=False
    )
    figure.text(0.99, 0.005, "* held out when it was written", ha="right", va="bottom", fontsize="small")
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def save_frontier(spots: Sequence[Spot], path: str) -> None:
    """One panel per model: time over peak of torch.compile under its budgets, and of funcgrad within the same peaks."""
    keys = list(dict.fromkeys((s.model, s.compiler) for s in spots))
    figure, panels = plt.subplots(1, len(keys), figsize=(3.2 * len(keys), 3), squeeze=False)
    for panel, key in zip(panels[0], keys, strict=True):
        own = [s for s in spots if (s.model, s.compiler) == key]
        kept = [s for s in own if not s.why]
        panel.scatter(
            [s.torch_bytes / 2**20 for s in own],
            [s.torch_seconds * 1e3 for s in own],
            label=f"torch.compile ({key[1]})",
            s=22,
        )
        panel.scatter([s.bytes / 2**20 for s in kept], [s.seconds * 1e3 for s in kept], label="funcgrad", s=22)
        panel.set_title(key[0])
        panel.set_xlabel("peak, MiB")
    panels[0][0].set_ylabel("ms")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
