"""The program that trains a GPT: its package opens everywhere, and a kill changes no byte of it."""

import json
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import gpt
import pytest
import torch

from standfast.errors import BadOption
from standfast.packages import DatasetInfo, GenerationInfo, load_model_folder
from tests.examples.programs import checkpoints, command, kill_after, run, run_here
from tests.packages import hugging

STEPS, EVERY = 24, 3
TEXTS = (
    "The cat sat on the mat, and the dog sat on the cat. " * 12,
    "One fish is red, two fish are blue; naïve crêpes are neither. " * 10,
)
SMALL = ["--steps", STEPS, "--every", EVERY, "--batch", 2, "--vocabulary", 300, "--seed", 3]
PROMPT = ["--prompt", "The cat", "--tokens", 12]


class Run:
    """What a run of the program left behind."""

    def __init__(self, folder: Path, start: Callable[..., str] = run) -> None:
        self.store, self.models = folder / "store", folder / "models"
        self.printed = start("gpt", *options(folder))
        (self.package,) = self.models.iterdir()
        self.continued = self.printed.partition(" goes on:\n")[2]
        """What the model made of the prompt."""


def options(folder: Path) -> list[object]:
    paths = [folder / f"{number}.txt" for number, _ in enumerate(TEXTS)]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_text(text, encoding="utf-8")
    folders = ["--store", folder / "store", "--models", folder / "models"]
    return [*paths, *folders, *SMALL, *PROMPT]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """More of them would wait for each other, on a machine that does other things too."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    return Run(tmp_path_factory.mktemp("whole"), run_here)


FILES = """
    config.json dataset.json dataset.txt generation_info.json manifest.json model.safetensors
    tokenizer.json tokenizer_config.json
""".split()


def test_a_run_leaves_its_losses_and_a_package_of_its_last_checkpoint(whole):
    (log,) = whole.store.glob("logs/*_metrics.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    losses = [line["metrics"]["loss"] for line in lines]
    assert losses[-1] < losses[0] - 1
    rates = [line["metrics"]["rate"] for line in lines]
    assert rates == [gpt.RATE * gpt.share(step, last=STEPS) for step in range(STEPS)]
    saved = checkpoints(whole.store)
    assert {step: each.metrics["loss"] for step, each in saved.items()} == {
        step: losses[step - 1] for step in range(EVERY, STEPS + 1, EVERY)
    }
    made = datetime.strptime(whole.package.name, "gpt_%Y%m%d_%H%M%S")
    assert abs((datetime.now() - made).total_seconds()) < 600
    assert sorted(path.name for path in whole.package.iterdir()) == FILES
    model, tokenizer, _, _ = load_model_folder(whole.package)
    weights, loaded = saved[STEPS].load()["model"], model.state_dict()
    assert list(loaded) == list(weights)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
    info = GenerationInfo.load(whole.package / "generation_info.json")
    assert (info.prompt, info.model_size) == ("The cat", "tiny")
    assert (info.training_params.steps, info.training_params.seed) == (STEPS, 3)
    assert info.training_params.final_loss == losses[-1]
    assert info.data_stats.vocab_size == model.config.vocab_size <= 300
    assert info.libraries["torch"] == version("torch")
    dataset = DatasetInfo.load(whole.package / "dataset.json")
    assert tuple(sample.text for sample in dataset.samples) == TEXTS
    tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert (dataset.metadata.total_samples, dataset.metadata.total_tokens) == (2, tokens)
    assert (whole.package / "dataset.txt").read_text(encoding="utf-8") == dataset.text()


@pytest.mark.long
def test_transformers_gives_the_same_logits_and_ids(whole):
    model, tokenizer, _, _ = load_model_folder(whole.package)
    library = hugging.transformers()
    other = library.GPT2LMHeadModel.from_pretrained(whole.package).eval()
    ids = tokenizer.encode(TEXTS[1]).ids
    assert library.AutoTokenizer.from_pretrained(whole.package)(TEXTS[1])["input_ids"] == ids
    row = torch.tensor([ids[: model.config.n_positions]])
    with torch.no_grad():
        assert torch.equal(model(row), other(row).logits)


@pytest.mark.long
def test_a_package_alone_goes_on_in_the_same_way(whole):
    again = run("gpt", "--generate-only", whole.package, *PROMPT, "--seed", 3)
    assert again.partition(" goes on:\n")[2] == whole.continued
    assert whole.continued.startswith("The cat")
    model, tokenizer, _, _ = load_model_folder(whole.package)
    ids = tokenizer.encode("The cat").ids
    made = {tuple(model.generate(ids, 12, temperature=0.5, seed=seed)) for seed in range(8)}
    assert len(made) > 1


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bytes(whole, tmp_path):
    kill_after(command("gpt", *options(tmp_path)), tmp_path / "store", checkpoints=2)
    assert EVERY < max(checkpoints(tmp_path / "store")) < STEPS
    assert not (tmp_path / "models").exists()
    resumed = Run(tmp_path)
    assert "     1  loss" in whole.printed
    assert "     1  loss" not in resumed.printed
    assert resumed.continued == whole.continued
    for name in ("model.safetensors", "config.json", "tokenizer.json", "dataset.txt"):
        assert (resumed.package / name).read_bytes() == (whole.package / name).read_bytes()


def test_a_text_that_is_too_short_is_refused():
    tokenizer = gpt.trained_tokenizer(TEXTS, 300)
    with pytest.raises(BadOption, match="2"):
        gpt.Windows(["f"], tokenizer)


def test_rates_grow_and_then_fall_to_a_tenth():
    rates = [gpt.share(step, last=100) for step in range(101)]
    assert rates.index(max(rates)) == 9
    assert rates[:10] == sorted(rates[:10])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
