"""The heat program: its steps, and its mesh."""

import heat
import numpy as np
import pytest

from standfast.amr import OpenTopology, ScalarFrontend
from standfast.parallel import SingleRank

FINE = heat.ACROSS * heat.BLOCK * 2**heat.FINEST


@pytest.fixture(scope="module")
def plate():
    """A plate after 120 steps."""
    made = new_plate()
    sparks = np.random.default_rng(0)
    for step in range(1, 121):
        made.advance(step, sparks)
    return made


def new_plate():
    return heat.new_plate(ScalarFrontend(2, heat.BLOCK, OpenTopology(2, (1.0, 1.0))), SingleRank())


def painted(plate):
    """The temperature on the finest sites, [y, x], and how many blocks hold each of them."""
    temperature, held = np.zeros((FINE, FINE)), np.zeros((FINE, FINE), int)
    size = heat.BLOCK
    for index in plate.tree.live:
        block = plate.tree.blocks[index]
        times = 2 ** (heat.FINEST - int(block["level"]))
        x, y = (block["origin"].astype(int) * times).tolist()
        inside = slice(y, y + size * times), slice(x, x + size * times)
        field = plate.arena.storage[plate.tree.field_slots[index]].reshape(size, size)
        temperature[inside] = field.repeat(times, 0).repeat(times, 1)
        held[inside] += 1
    return temperature, held


class Array:
    """A plain array in the place of a patch: one mesh for the whole plate, cold around it."""

    def __init__(self, field):
        self.field, self.spacing = field, 1 / len(field)

    def shifted(self, d, step):
        rolled = np.zeros_like(self.field)
        to, out = (slice(0, -1), slice(1, None)) if step > 0 else (slice(1, None), slice(0, -1))
        axes = (slice(None), to) if d == 0 else (to, slice(None))
        source = (slice(None), out) if d == 0 else (out, slice(None))
        rolled[axes] = self.field[source]
        return rolled

    def positions(self, d):
        along = (np.arange(len(self.field)) + 0.5) * self.spacing
        return along[np.newaxis, :] if d == 0 else along[:, np.newaxis]


def advanced(field, steps):
    """What the program does, without a mesh."""
    sparks = np.random.default_rng(0)
    for step in range(1, steps + 1):
        field = heat.heating(step * heat.STEP)(Array(field))
        if step % heat.SPARK_EVERY == 0:
            x, y, hot = sparks.uniform((0.1, 0.1, 1.0), (0.9, 0.9, 5.0))
            field = field + heat.spot(Array(field), x, y, 0.08, hot)
    return field


def test_on_one_level_steps_are_those_of_a_plain_array():
    coarse = new_plate()
    coarse.tree.max_level = 0
    sparks = np.random.default_rng(0)
    for step in range(1, 91):
        coarse.advance(step, sparks)
    times = 2**heat.FINEST
    found = painted(coarse)[0][::times, ::times]
    assert coarse.refined == 0
    assert np.array_equal(found, advanced(np.zeros_like(found), 90))


def test_the_adaptive_mesh_agrees_with_a_fine_one(plate):
    found, expected = painted(plate)[0], advanced(np.zeros((FINE, FINE)), 120)
    assert found.sum() == pytest.approx(expected.sum(), rel=0.02)
    assert np.abs(found - expected).mean() < 0.03 * np.abs(expected).mean()


def test_the_mesh_gets_finer_and_coarser_and_covers_the_plate_once(plate):
    levels = plate.tree.blocks["level"][plate.tree.live]
    assert set(levels) == set(range(heat.FINEST + 1))
    assert plate.refined > 50
    assert plate.coarsened > 3
    assert len(levels) == heat.ACROSS**2 + 3 * (plate.refined - plate.coarsened)
    assert np.all(painted(plate)[1] == 1)
    assert str(plate).startswith(f"{len(levels)} blocks, by level ")


def test_a_wave_decays_by_conduction_and_cooling():
    sites, steps = 64, 30
    wave = np.sin(np.pi * np.arange(1, sites + 1) / (sites + 1))
    start = np.outer(wave, wave)
    decayed = advanced(start, steps) - advanced(np.zeros_like(start), steps)
    rate = heat.COOLING + 2 * np.pi**2 * heat.CONDUCTIVITY
    expected = start * np.exp(-rate * steps * heat.STEP)
    assert np.abs(decayed - expected).max() < 0.003 * expected.max()
