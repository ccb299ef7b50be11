"""The names of Lightning and Transformers, in Standfast's terms."""

from datetime import timedelta
from typing import Any

import pytest

from standfast import KeepAll, KeepBest, KeepLast, KeepTagged
from standfast.conventions import Translated, translate
from standfast.errors import BadOption
from standfast.policies import Policies


def kept(**options: Any) -> Any:
    return translate(options, options.pop("monitor", None), options.pop("mode", None)).keep


def test_what_lightning_calls_it():
    assert kept(save_top_k=3, monitor="loss", mode="max") == Policies((KeepBest(3, "loss", "max"),))
    assert kept(save_top_k=2, save_last=True, monitor="loss") == KeepBest(2, "loss") | KeepLast(1)
    assert kept(save_top_k=-1) == Policies((KeepAll(),))
    assert kept(save_top_k=0) == Policies((KeepTagged(),))
    assert kept(save_top_k=1) == Policies((KeepLast(1),))
    assert kept(save_last=False) is None
    assert translate({"every_n_train_steps": 50}).every == 50
    assert translate({"train_time_interval": timedelta(minutes=5)}).every == timedelta(minutes=5)


def test_what_transformers_calls_it():
    assert kept(save_total_limit=3) == Policies((KeepLast(3),))
    assert kept(save_total_limit=0) == Policies((KeepAll(),))
    with_best = translate({"save_total_limit": 3, "metric_for_best_model": "eval_loss"})
    assert with_best == Translated(Policies((KeepLast(2),)), "eval_loss", "min")
    assert translate({"metric_for_best_model": "eval_f1"}).mode == "max"
    given = translate({"metric_for_best_model": "eval_f1", "greater_is_better": False})
    assert (given.monitor, given.mode) == ("eval_f1", "min")
    assert translate({"save_steps": 500}).every == 500


def test_nothing_said_is_nothing_meant():
    assert translate({}) == Translated()
    assert translate({"save_total_limit": None, "save_top_k": None}) == Translated()
    assert translate({}, "loss", "max") == Translated(monitor="loss", mode="max")


@pytest.mark.parametrize(
    "options",
    [
        {"save_topk": 3},
        {"colour": "red"},
        {"save_top_k": 3},
        {"save_top_k": -2},
        {"save_top_k": True},
        {"save_total_limit": "many"},
        {"save_steps": 5, "every_n_train_steps": 5},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(BadOption) as caught:
        translate(options)
    assert any(name in str(caught.value) for name in options)
