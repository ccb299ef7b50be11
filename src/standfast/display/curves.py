"""Curves out of dots, eight in each character, as terminals show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

Points = Sequence[tuple[float, float]]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character: four rows of two."""


@dataclass(frozen=True)
class Curve:
    """Points to be joined, and the colour to draw them in; a later curve covers others."""

    points: Points
    style: str


@dataclass(frozen=True)
class Axes:
    """What the edges of a plot stand for."""

    left: float
    right: float
    bottom: float
    top: float


def plot(curves: Sequence[Curve], axes: Axes, width: int, height: int) -> list[Text]:
    """Curves as lines of text, so many characters wide and high."""
    bits = [[0] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    for curve in curves:
        for column, row in _dots(curve.points, axes, 2 * width, 4 * height):
            bits[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
            styles[row // 4][column // 2] = curve.style
    return [
        Text.assemble(
            *(
                (chr(0x2800 + bit) if bit else " ", style)
                for bit, style in zip(row, line, strict=True)
            )
        )
        for row, line in zip(bits, styles, strict=True)
    ]


def _dots(points: Points, axes: Axes, columns: int, rows: int) -> list[tuple[int, int]]:
    """The dots on the way from each point to the next, counted from the top left."""
    placed = [
        (
            (x - axes.left) / ((axes.right - axes.left) or 1) * (columns - 1),
            (axes.top - y) / ((axes.top - axes.bottom) or 1) * (rows - 1),
        )
        for x, y in points
        if math.isfinite(y)
    ]
    found = [_nearest(column, row, columns, rows) for column, row in placed[:1]]
    for (x, y), (to_x, to_y) in pairwise(placed):
        steps = max(1, math.ceil(max(abs(to_x - x), abs(to_y - y))))
        for step in range(1, steps + 1):
            part = step / steps
            found.append(_nearest(x + (to_x - x) * part, y + (to_y - y) * part, columns, rows))
    return found


def _nearest(column: float, row: float, columns: int, rows: int) -> tuple[int, int]:
    return min(max(round(column), 0), columns - 1), min(max(round(row), 0), rows - 1)
