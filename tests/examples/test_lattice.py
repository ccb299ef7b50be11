"""The lattice program: known values, and links in blocks against links in one array."""

import argparse
import itertools
import math
import sys

import lattice
import numpy as np
import pytest
from gauge_theory import (
    dagger,
    draw_momenta,
    exact_plaquette,
    exponential,
    force,
    mean_and_error,
    multiply,
    plaquette_sums,
    trace,
    unitary,
)

from standfast.parallel import SingleRank


def arguments(**given):
    usual = {"group": "u1", "dims": 2, "size": 8, "beta": 2.0, "steps": 8, "length": 1.5}
    return argparse.Namespace(**usual | {"start": "hot", "warm_up": 30, "seed": 1} | given)


def simulated(count, **given):
    """What was measured after the warm-up of a run."""
    settings = arguments(**given)
    made = lattice.new_lattice(settings, SingleRank())
    metropolis = np.random.default_rng(settings.seed)
    for number in range(1, count + 1):
        made.update(number, settings, metropolis)
    return {name: np.array(each[settings.warm_up :]) for name, each in made.history.items()}


def one_torus(made, size):
    """The links of all blocks as one block of the whole lattice."""
    nd = made.tree.frontend.nd
    whole = np.zeros((1, *(size,) * nd, *made.shape[-3:]), complex)
    for block, links in zip(made.tree.blocks[made.tree.live], made.links, strict=True):
        origin = reversed(block["origin"].tolist())
        whole[(0, *(slice(at, at + lattice.BLOCK) for at in origin))] = links
    return np.pad(whole, [(0, 0)] + [(1, 1)] * nd + [(0, 0)] * 3, mode="wrap")


def su3_in_two_dimensions(beta):
    """The mean plaquette, as an integral over the eigenvalues of one matrix (Weyl)."""
    angles = np.linspace(0, 2 * np.pi, 300, endpoint=False)
    phases = np.exp(1j * np.stack(np.meshgrid(angles, angles)))
    phases = [phases[0], phases[1], 1 / (phases[0] * phases[1])]
    trace = sum(phases).real / 3
    weight = np.exp(beta * trace)
    for first, second in itertools.combinations(phases, 2):
        weight = weight * np.abs(first - second) ** 2
    return float((weight * trace).sum() / weight.sum())


@pytest.mark.parametrize(
    ("group", "beta", "size", "count"),
    [
        pytest.param("u1", 2.0, 8, 630, marks=pytest.mark.long),
        pytest.param("su2", 2.5, 4, 430, marks=pytest.mark.long),
        ("su3", 4.0, 4, 230),
    ],
)
def test_the_plaquette_in_two_dimensions_is_the_exact_one(group, beta, size, count):
    exact = su3_in_two_dimensions(beta) if group == "su3" else exact_plaquette(group, 2, beta)
    found = simulated(count, group=group, beta=beta, size=size)
    mean, error = mean_and_error(found["plaquette"])
    assert error < 0.02
    assert abs(mean - exact) < 4 * error
    weight, weight_error = mean_and_error(np.exp(-found["violation"]))
    assert abs(weight - 1) < 4 * weight_error
    assert 0.7 < found["accepted"].mean() < 1


@pytest.mark.parametrize(("group", "dims"), [("u1", 2), ("su3", 2), ("su2", 3)])
def test_blocks_together_are_one_lattice(group, dims):
    size = 8
    made = lattice.new_lattice(arguments(group=group, dims=dims, size=size), SingleRank())
    torus = one_torus(made, size)
    planes = math.comb(dims, 2) * size**dims
    assert made.plaquette() == pytest.approx(plaquette_sums(torus)[0] / planes, rel=1e-12)
    forces = force(torus, 2.0)
    for block, found in zip(made.tree.blocks, force(made.surrounded(made.links), 2.0), strict=True):
        origin = reversed(block["origin"].tolist())
        expected = forces[(0, *(slice(at, at + lattice.BLOCK) for at in origin))]
        assert np.abs(found - expected).max() < 1e-13


def test_momenta_depend_on_seed_trajectory_and_block_alone():
    made = lattice.new_lattice(arguments(), SingleRank())
    drawn = made.drawn(1, 5)
    assert np.array_equal(drawn, made.drawn(1, 5))
    for other in (made.drawn(2, 5), made.drawn(1, 6), drawn[::-1]):
        assert not np.any(drawn == other)
    made.tree.invalidate_block(1)
    assert np.array_equal(made.drawn(1, 5), drawn[[0, 2, 3]])


def test_a_size_that_is_not_in_blocks_is_refused(seams, capsys):
    seams.system(sys, argv=["lattice.py", "--size", "6"])
    with pytest.raises(SystemExit):
        lattice.parse()
    assert "--size" in capsys.readouterr().err


GROUPS = pytest.mark.parametrize("size", [1, 2, 3], ids=["u1", "su2", "su3"])


def surrounded(links):
    """One block that is its own neighbour on all sides."""
    nd = links.shape[-3]
    return np.pad(links, [(0, 0)] + [(1, 1)] * nd + [(0, 0)] * 3, mode="wrap")


def hot(generator, size, nd=3, length=4):
    shape = (1, *(length,) * nd, nd, size, size)
    return exponential(3 * draw_momenta(generator, shape))


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
def test_links_off_the_group_are_led_back(size):
    generator = np.random.default_rng(7)
    links = hot(generator, size)
    noise = generator.standard_normal(links.shape) + 1j * generator.standard_normal(links.shape)
    found = unitary(links + 1e-9 * noise)
    assert np.abs(multiply(found, dagger(found)) - np.eye(size)).max() < 1e-14
    assert np.abs(found - links).max() < 1e-8
    if size > 1:
        assert np.abs(np.linalg.det(found) - 1).max() < 1e-14


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
