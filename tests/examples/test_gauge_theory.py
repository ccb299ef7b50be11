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
    kinetic_energy,
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


def energy(links, momenta, beta):
    return float(kinetic_energy(momenta)[0] - beta * plaquette_sums(surrounded(links))[0])


@GROUPS
def test_the_exponential_is_the_sum_of_its_series(size):
    momenta = draw_momenta(np.random.default_rng(1), (50, size, size))
    term = series = np.broadcast_to(np.eye(size), momenta.shape).astype(complex)
    for n in range(1, 60):
        term = term @ momenta / n
        series = series + term
    assert np.abs(exponential(momenta) - series).max() < 1e-13
    assert np.array_equal(exponential(np.zeros((1, size, size), complex))[0], np.eye(size))


@GROUPS
def test_momenta_have_the_mean_energy_of_their_degrees_of_freedom(size):
    momenta = draw_momenta(np.random.default_rng(2), (20_000, size, size))
    generators = max(1, size**2 - 1)
    energies = kinetic_energy(momenta)
    assert abs(energies.mean() - generators / 2) < 5 * energies.std() / math.sqrt(len(energies))
    assert np.array_equal(dagger(momenta), -momenta)
    if size > 1:
        assert np.abs(trace(momenta)).max() < 1e-14


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
def test_half_the_step_violates_the_energy_a_quarter_as_much(size):
    generator = np.random.default_rng(6)
    links = hot(generator, size)
    violations = []
    for _ in range(10):
        momenta = draw_momenta(generator, links.shape)
        before = energy(links, momenta, 2.0)
        ends = [leapfrog(links, momenta, surrounded, 2.0, 0.4 / n, n) for n in (8, 16)]
        violations.append([abs(energy(*end, 2.0) - before) for end in ends])
        links = ends[1][0]
    coarse, fine = np.mean(violations, axis=0)
    assert 3.6 < coarse / fine < 4.4


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
