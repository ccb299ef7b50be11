"""The physics of the lattice program, against slow or independent ways to the same numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from gauge_theory import (
    dagger,
    draw_momenta,
    exact_plaquette,
    exponential,
    force,
    leapfrog,
    mean_and_error,
    multiply,
    plaquette_sums,
    trace,
    unitary,
)

GROUPS = pytest.mark.parametrize("size", [1, 2, 3], ids=["u1", "su2", "su3"])


def surrounded(links):
    """One block that is its own neighbour on all sides."""
    nd = links.shape[-3]
    return np.pad(links, [(0, 0)] + [(1, 1)] * nd + [(0, 0)] * 3, mode="wrap")


def hot(generator, size, nd=3, length=4):
    shape = (1, *(length,) * nd, nd, size, size)
    return exponential(3 * draw_momenta(generator, shape))


@GROUPS
def test_plaquettes_are_those_of_a_walk_from_site_to_site(size):
    links = hot(np.random.default_rng(3), size)[0]
    length, nd = links.shape[0], links.shape[-3]
    total = 0.0
    for place in itertools.product(range(length), repeat=nd):
        for mu, nu in itertools.permutations(range(nd), 2):
            at, loop = list(place), np.eye(size)
            for d, forwards in ((mu, True), (nu, True), (mu, False), (nu, False)):
                axis = nd - 1 - d
                if forwards:
                    loop = loop @ links[(*at, d)]
                    at[axis] = (at[axis] + 1) % length
                else:
                    at[axis] = (at[axis] - 1) % length
                    loop = loop @ links[(*at, d)].conj().T
            assert at == list(place)
            total += loop.trace().real / size / 2  # each was walked both ways round
    assert plaquette_sums(surrounded(links[None]))[0] == pytest.approx(total, rel=1e-12)


@GROUPS
def test_the_force_is_the_slope_of_the_action(size):
    generator = np.random.default_rng(4)
    links, direction = hot(generator, size), draw_momenta(generator, (1, 4, 4, 4, 3, size, size))
    beta, step = 2.3, 1e-5
    actions = [
        -beta * plaquette_sums(surrounded(multiply(exponential(way * direction), links)))[0]
        for way in (step, -step)
    ]
    slope = (actions[0] - actions[1]) / (2 * step)
    pushed = multiply(direction, force(surrounded(links), beta))
    assert 2 * trace(pushed).real.sum() == pytest.approx(slope, rel=1e-7)


@GROUPS
def test_a_trajectory_leads_back_when_the_momenta_are_turned_round(size):
    generator = np.random.default_rng(5)
    links = hot(generator, size)
    momenta = draw_momenta(generator, links.shape)
    there = leapfrog(links, momenta, surrounded, 2.0, 0.1, 10)
    back = leapfrog(there[0], -there[1], surrounded, 2.0, 0.1, 10)
    assert np.abs(there[0] - links).max() > 0.5
    assert np.abs(back[0] - links).max() < 1e-12
    assert np.abs(back[1] + momenta).max() < 1e-12


@GROUPS
def test_links_off_the_group_are_led_back(size):
    generator = np.random.default_rng(7)
    links = hot(generator, size)
    noise = generator.standard_normal(links.shape) + 1j * generator.standard_normal(links.shape)
    found = unitary(links + 1e-9 * noise)
    assert np.abs(multiply(found, dagger(found)) - np.eye(size)).max() < 1e-14
    assert np.abs(found - links).max() < 1e-8
    if size > 1:
        assert np.abs(np.linalg.det(found) - 1).max() < 1e-14


def test_exact_plaquettes_are_integrals_over_the_group():
    angle = np.linspace(0, np.pi, 200_001)
    for beta in (0.3, 2.0, 9.0):
        weight = np.exp(beta * (np.cos(angle) - 1))
        for group, measure in (("u1", 1.0), ("su2", np.sin(angle) ** 2)):
            mean = np.trapezoid(measure * weight * np.cos(angle), angle) / np.trapezoid(
                measure * weight, angle
            )
            assert exact_plaquette(group, 2, beta) == pytest.approx(mean, rel=1e-7)
    assert exact_plaquette("u1", 4, 1.0) is None
    assert exact_plaquette("su3", 2, 1.0) is None


def test_the_error_of_a_chain_counts_its_memory():
    generator = np.random.default_rng(8)
    noise = generator.standard_normal(200_000)
    chain = np.zeros_like(noise)
    for i in range(1, len(chain)):
        chain[i] = 0.9 * chain[i - 1] + noise[i]
    mean, error = mean_and_error(chain)
    expected = 1 / (1 - 0.9) / math.sqrt(len(chain))
    assert mean == chain.mean()
    assert 0.7 * expected < error < 1.6 * expected
