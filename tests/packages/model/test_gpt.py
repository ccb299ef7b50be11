"""The model itself: what it computes, what it generates, how it is built."""

import math

import numpy as np
import pytest
import torch

from standfast import errors
from standfast.packages import GPT, Config
from standfast.packages.model import gpt
from standfast.packages.model.config import ACTIVATIONS, shapes
from standfast.packages.model.gpt import empty, fill

TINY = Config(vocab_size=61, n_positions=16, n_embd=32, n_layer=2, n_head=4)


@pytest.fixture
def model() -> GPT:
    generator_state = torch.get_rng_state()
    torch.manual_seed(1)
    model = GPT(TINY).eval()
    torch.set_rng_state(generator_state)
    return model


def test_the_sizes_are_those_that_the_first_users_know():
    for config, parameters in (
        (Config.small(), 30),
        (Config.medium(), 51),
        (Config.large(), 124),
    ):
        total = sum(parameter.numel() for parameter in empty(config).parameters())
        assert round(total / 1e6) == parameters
        assert config.n_embd // config.n_head == 64


def test_the_architecture_names_every_parameter_in_its_order():
    assert sorted(gpt.ACTIVATIONS) == sorted(ACTIVATIONS)
    for tied in (True, False):
        config = TINY.changed(tie_word_embeddings=tied, n_inner=100)
        found = [(name, tuple(value.shape)) for name, value in empty(config).state_dict().items()]
        assert found == list(shapes(config))


def test_an_empty_model_takes_no_memory_until_it_is_filled(model):
    other = empty(TINY)
    assert all(parameter.is_meta for parameter in other.parameters())
    fill(other, model.state_dict())
    ids = torch.tensor([[5, 3, 60]])
    assert torch.equal(other.eval()(ids), model(ids))
    assert all(parameter.requires_grad for parameter in other.parameters())


def test_the_same_seed_gives_the_same_tokens(model):
    before = torch.get_rng_state()
    first = model.generate([1, 2, 3], 30, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.generate([1, 2, 3], 30, seed=5) == first
    assert model.generate([1, 2, 3], 30, seed=6) != first
    assert first[:3] == [1, 2, 3]
    assert len(first) == 33  # beyond the 16 positions that the model has
    with torch.random.fork_rng():  # without a seed, the global generator is used
        torch.manual_seed(3)
        first = model.generate([1], 10)
        torch.manual_seed(3)
        assert model.generate([1], 10) == first
        assert model.generate([1], 10) != first


def test_the_ids_may_be_a_tensor(model):
    expected = model.generate([1, 2, 3], 5, seed=5)
    assert model.generate(torch.tensor([1, 2, 3]), 5, seed=5) == expected
    assert model.generate(torch.tensor([[1, 2, 3]]), 5, seed=5) == expected
    for wrong in (torch.tensor([[1, 2], [3, 4]]), torch.tensor([0.5]), torch.tensor(1)):
        with pytest.raises(errors.BadOption):
            model.generate(wrong, 5)


def test_what_was_computed_before_need_not_be_computed_again(model):
    ids = torch.tensor([[4, 8, 15, 16, 23, 42]])
    with torch.no_grad():
        past: list[tuple[torch.Tensor, torch.Tensor]] = []
        parts = [model(ids[:, :3], past), model(ids[:, 3:5], past), model(ids[:, 5:], past)]
        # In other sizes, the sums of a product are made in another order.
        torch.testing.assert_close(torch.cat(parts, 1), model(ids))


def test_the_likeliest_token_is_the_one_of_the_whole_text(model):
    known = [7]
    for _ in range(20):
        with torch.no_grad():
            known.append(int(model(torch.tensor([known[-16:]]))[0, -1].argmax()))
    assert model.generate([7], 20, temperature=0) == known
    assert model.generate([7], 20, top_k=1, seed=9) == known
    assert model.generate([7], np.int64(20), temperature=0) == known  # type: ignore[arg-type]


def test_a_text_ends_with_the_end_token(model):
    likeliest = model.generate([7], 1, temperature=0)[-1]
    for ends in (likeliest, [60, likeliest]):
        other = GPT(TINY.changed(eos_token_id=ends))
        other.load_state_dict(model.state_dict())
        assert other.generate([7], 20, temperature=0) == [7, likeliest]


def test_generating_leaves_the_mode_of_the_model_as_it_was(model):
    model.train()
    assert model.generate([1], 3, seed=1) == model.generate([1], 3, seed=1)  # no dropout
    assert model.training


def test_what_nothing_can_be_generated_from_is_refused(model):
    for ids in ([], [61], [-1], ["a"], [[1, 2]], "ab"):
        with pytest.raises(errors.BadOption):
            model.generate(ids)
    for options in (
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"seed": 1 << 70},
        *({"max_new_tokens": count} for count in (-1, 2.5, True)),
    ):
        with pytest.raises(errors.BadOption):
            model.generate([1], **options)
    with torch.no_grad():
        model.ln_f.bias.fill_(math.nan)
    with pytest.raises(errors.BadOption, match="NaN"):
        model.generate([1], 3)


def test_it_learns(model):
    text = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        logits = model(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < 3 < losses[0]
    assert model.generate([3], 3, temperature=0) == [3, 1, 4, 1]
