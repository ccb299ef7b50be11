"""The physics of a lattice gauge theory with Wilson's action, for U(1), SU(2) and SU(3).

Links come as an array with one site around each block, [block, x_(nd-1), …, x_0, dimension, N, N],
so dimension 0 is the last of the sites' axes. What is returned has the sites of the blocks alone.
Momenta are anti-Hermitian matrices, traceless for SU(N): a link moves by U' = P U, and the energy
is -Σ tr P² + β Σ (1 - Re tr(plaquette) / N). For U(1) this is the usual one with another clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Matrices = Any
"""An array [..., N, N] of complex numbers."""
Numbers = Any
"""An array of numbers."""

TERMS = 32
"""Of the exponential series: enough for all digits of steps ten times as long as sensible ones."""


def dagger(matrices: Matrices) -> Matrices:
    """The adjoints."""
    return matrices.swapaxes(-1, -2).conj()


def multiply(left: Matrices, right: Matrices) -> Matrices:
    """Products of matrices; numbers are numbers."""
    return left * right if left.shape[-1] == 1 else left @ right


def trace(matrices: Matrices) -> Numbers:
    """The traces."""
    return matrices.trace(axis1=-2, axis2=-1)


def squared(matrices: Matrices) -> Numbers:
    """|z|² of each element; the last bit of NumPy's abs may depend on where it lies in memory."""
    return matrices.real**2 + matrices.imag**2


def algebra(matrices: Matrices) -> Matrices:
    """Their part in the Lie algebra: anti-Hermitian, and traceless for SU(N)."""
    part = (matrices - dagger(matrices)) / 2
    size = part.shape[-1]
    if size > 1:
        part -= trace(part)[..., None, None] / size * np.eye(size)
    return part


def exponential(momenta: Matrices) -> Matrices:
    """The group elements exp(P)."""
    size = momenta.shape[-1]
    if size == 1:
        return np.exp(momenta)
    if size == 2:  # P² is a number: the squared length of P, with a minus sign
        length = np.sqrt(squared(momenta).sum(axis=(-2, -1), keepdims=True) / 2)
        return np.cos(length) * np.eye(2) + np.sinc(length / np.pi) * momenta
    # P³ = p P + d (Cayley and Hamilton), so that every power is a sum of 1, P and P².
    square = momenta @ momenta
    p, d = trace(square) / 2, trace(square @ momenta) / 3
    one = linear = quadratic = np.zeros_like(p)
    for n in reversed(range(TERMS)):
        one, linear, quadratic = 1 / math.factorial(n) + d * quadratic, one + p * quadratic, linear
    one, linear, quadratic = (each[..., None, None] for each in (one, linear, quadratic))
    return one * np.eye(size) + linear * momenta + quadratic * square


def unitary(links: Matrices) -> Matrices:
    """Links back on the group, which rounding led them off."""
    size = links.shape[-1]
    if size == 1:
        return links / np.sqrt(squared(links))
    links = links @ (1.5 * np.eye(size) - dagger(links) @ links / 2)
    phase = np.angle(np.linalg.det(links))[..., None, None] / size
    return links * np.exp(-1j * phase)


def draw_momenta(generator: np.random.Generator, shape: tuple[int, ...]) -> Matrices:
    """Random momenta with the weight exp(tr P²)."""
    drawn = generator.standard_normal((*shape, 2)).view(np.complex128)[..., 0]
    return algebra(drawn) / math.sqrt(2)


def kinetic_energy(momenta: Matrices) -> Numbers:
    """-Σ tr P² of each block."""
    return _block_sums(squared(momenta))


def plaquette_sums(links: Matrices) -> Numbers:
    """Σ Re tr(plaquette) / N of each block, over the sites and the planes."""
    nd, size = links.shape[-3], links.shape[-1]
    found = [
        trace(multiply(_corner(links, mu, nu), dagger(_corner(links, nu, mu)))).real / size
        for mu, nu in itertools.combinations(range(nd), 2)
    ]
    return _block_sums(np.stack(found, axis=1))


def force(links: Matrices, beta: float) -> Matrices:
    """How fast the momenta change: -β / 2N times the algebra's part of link times staples."""
    nd, size = links.shape[-3], links.shape[-1]
    found = [
        multiply(_at(links, mu), sum(_staples(links, mu, nu) for nu in range(nd) if nu != mu))
        for mu in range(nd)
    ]
    return -beta / (2 * size) * algebra(np.stack(found, axis=-3))


def leapfrog(
    links: Matrices,
    momenta: Matrices,
    surrounded: Callable[[Matrices], Matrices],
    beta: float,
    step: float,
    count: int,
) -> tuple[Matrices, Matrices]:
    """Links and momenta after `count` steps; `surrounded` adds the sites around each block.

    A trajectory that is followed back, with the momenta turned round, ends where it began.
    """
    momenta = momenta + step / 2 * force(surrounded(links), beta)
    for number in range(1, count + 1):
        links = multiply(exponential(step * momenta), links)
        kick = step if number < count else step / 2
        momenta = momenta + kick * force(surrounded(links), beta)
    return links, momenta


def _staples(links: Matrices, mu: int, nu: int) -> Matrices:
    """The two ways from the far end of link mu back to its near one, by +nu and by -nu."""
    above = multiply(_at(links, nu, {mu: 1}), dagger(_corner(links, nu, mu)))
    back = multiply(_at(links, mu, {nu: -1}), _at(links, nu, {mu: 1, nu: -1}))
    return above + multiply(dagger(back), _at(links, nu, {nu: -1}))


def _corner(links: Matrices, mu: int, nu: int) -> Matrices:
    """One step along mu, then one along nu."""
    return multiply(_at(links, mu), _at(links, nu, {mu: 1}))


def _at(links: Matrices, mu: int, steps: dict[int, int] | None = None) -> Matrices:
    """The links along mu, of the sites so many steps away from each site of the blocks."""
    nd = links.shape[-3]
    away = [(steps or {}).get(d, 0) for d in reversed(range(nd))]
    inside = [slice(1 + step, links.shape[1] - 1 + step) for step in away]
    return links[(slice(None), *inside, mu)]


def _block_sums(values: Numbers) -> Numbers:
    return values.reshape(len(values), math.prod(values.shape[1:])).sum(axis=1)


def exact_plaquette(group: str, dims: int, beta: float) -> float | None:
    """The mean plaquette of a large lattice where a formula is known: in two dimensions."""
    order = {"u1": 1, "su2": 2}.get(group)
    if dims != 2 or order is None:
        return None
    return _bessel(order, beta) / _bessel(order - 1, beta)


def _bessel(order: int, x: float) -> float:
    """The modified Bessel function I of whole order."""
    terms = range(40 + 2 * math.ceil(x))
    logs = [
        (2 * k + order) * math.log(x / 2) - math.lgamma(k + 1) - math.lgamma(k + order + 1)
        for k in terms
    ]
    return math.fsum(math.exp(log) for log in logs)


def mean_and_error(history: Numbers) -> tuple[float, float]:
    """The mean of a Markov chain and its standard error, from bins longer than its memory.

    A chain of less than 20 has no error that could be told.
    """
    errors = []
    length = 1
    while len(history) // length >= 20:
        bins = history[len(history) % length :].reshape(-1, length).mean(axis=1)
        errors.append(float(bins.std(ddof=1) / math.sqrt(len(bins))))
        length *= 2
    return float(np.mean(history)), max(errors, default=math.nan)
