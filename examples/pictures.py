"""The pictures of the two simulations, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from standfast.amr import AMRTree, FieldArena


def draw_mesh(path: str, parts: Sequence[tuple[AMRTree, FieldArena]], title: str) -> None:
    """A field in two dimensions, with the outlines of the blocks that hold it."""
    tree = parts[0][0]
    size, (right, top) = tree.frontend.block_size, tree.frontend.topology.extents
    finest = tree.spacing(tree.max_level)
    canvas = np.zeros((round(top / finest), round(right / finest)))
    outlines = []
    for tree, arena in parts:
        for index in tree.live.tolist():
            level, (x, y) = int(tree.blocks[index]["level"]), tree.blocks[index]["origin"].tolist()
            field = arena.storage[tree.field_slots[index]].reshape(size, size)
            times = 2 ** (tree.max_level - level)
            width = size * times
            canvas[y * times :, x * times :][:width, :width] = np.kron(
                field, np.ones((times, times))
            )
            spacing = tree.spacing(level)
            outlines.append(Rectangle((x * spacing, y * spacing), size * spacing, size * spacing))
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(canvas, extent=(0, right, 0, top), origin="lower", cmap="inferno", vmin=0)
    axes.add_collection(
        PatchCollection(outlines, facecolor="none", edgecolor="white", linewidth=0.4, alpha=0.5)
    )
    axes.set(xlabel="x", ylabel="y", title=title)
    figure.colorbar(image, ax=axes, label="temperature")
    figure.savefig(path, dpi=150)


@dataclass(frozen=True)
class Result:
    """A quantity after each trajectory, and what is known of its mean."""

    history: list[float]
    warm_up: int
    """How many of them, the first, do not count."""
    mean: float
    error: float
    exact: float | None


def draw_history(path: str, result: Result, title: str) -> None:
    """The plaquette after each trajectory, its mean with its error, and the exact value."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    last, mean, error = len(result.history), result.mean, result.error
    axes.plot(range(1, last + 1), result.history, color="0.6", lw=0.7, label="each trajectory")
    counted = [result.warm_up + 1, last]
    axes.plot(counted, [mean, mean], color="C0", label=f"mean {mean:.4f} ± {error:.4f}")
    axes.fill_between(counted, mean - error, mean + error, color="C0", alpha=0.4, lw=0)
    if result.exact is not None:
        axes.axhline(result.exact, color="C3", ls="--", label=f"exact {result.exact:.4f}")
    if result.warm_up:
        axes.axvspan(1, result.warm_up, color="0.93", label="warm-up, not counted")
    axes.set(xlabel="trajectory", ylabel="mean plaquette", title=title, xlim=(1, last))
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
