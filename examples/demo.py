"""A training run is killed in the middle of a save, and ends bit for bit like one that was not.

Run it with `make demo`.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save, save

import standfast

console = Console(highlight=False, soft_wrap=True)
PROGRAM = Path(__file__).with_name("train.py")
STEPS = 120
ROUNDS = 5


def main() -> None:
    """Tell the story in a folder of its own, on the disk that this file lies on."""
    build = Path(__file__).parent.parent / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        os.chdir(folder)
        train_whole()
        killed_at = train_with_a_kill()
        tensors, nbytes = compare()
        look_around()
        damage_and_resume()
        tell_the_cost()
    console.print(
        f"Proved: a run that was killed in the middle of saving step {killed_at}, and started "
        f"again, ended with the same weights, moments and random states as one that was never "
        f"stopped: {tensors} tensors, {nbytes / 1e6:.0f} MB, bit for bit.",
        style="bold green",
    )


def train_whole() -> None:
    """The run to compare with."""
    say(f"A network is trained for {STEPS} steps, with a checkpoint every 10, and never stopped.")
    with program("whole") as process:
        if process.wait() != 0:
            sys.exit("the training failed")


def train_with_a_kill() -> int:
    """The same once more, with SIGKILL while a checkpoint is being written."""
    say("The same program in another store. While it writes a checkpoint, it gets SIGKILL:")
    with program("killed") as process:
        step = wait_for_a_save(Path("killed"), after=STEPS // 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    latest = standfast.Store("killed").resolve("latest").step
    console.print(
        f"  killed while step {step} was being written; the latest checkpoint is step {latest}\n",
        style="red",
    )
    say("It is started again, and goes on by itself:")
    with program("killed") as process:
        if process.wait() != 0:
            sys.exit("the training failed")
    if unfinished(Path("killed")):
        sys.exit("an unfinished file was left behind")
    return step


@contextmanager
def program(store: str) -> Iterator[subprocess.Popen[str]]:
    """The training program at work."""
    command = [sys.executable, str(PROGRAM), "--steps", str(STEPS), "--store", store]
    show_command(f"python examples/train.py --steps {STEPS} --store {store}")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        yield process
        assert process.stdout is not None
        for line in process.stdout:
            console.print(f"  {line.rstrip()}", markup=False, soft_wrap=True)
    console.print()


def wait_for_a_save(store: Path, after: int) -> int:
    """Return the step of a checkpoint of which some bytes are written and the record is not."""
    for _ in range(120_000):
        steps = [int(path.stem.rpartition("_")[2]) for path in store.rglob("*_step_??????.json")]
        if max(steps, default=0) >= after and unfinished(store):
            return max(steps) + 10
        time.sleep(0.001)
    sys.exit("no save was seen in two minutes")


def unfinished(store: Path) -> list[Path]:
    """The files on their way into a store."""
    return list(store.rglob(".*.standfast"))


def compare() -> tuple[int, int]:
    """Every tensor and value of both last checkpoints, in bytes."""
    say("Both last checkpoints, compared tensor by tensor:")
    whole, killed = (standfast.Store(name).resolve("latest") for name in ("whole", "killed"))
    if whole.record.digests != killed.record.digests or whole.record.tree != killed.record.tree:
        sys.exit("the two runs differ")
    killed.verify()
    console.print(
        f"  step {whole.step}: {len(whole.tensors)} tensors with the same digests, and every byte "
        "read back to match them\n",
        style="green",
    )
    return len(whole.tensors), whole.nbytes


def look_around() -> None:
    """What the store has, whether it is sound, and what ten steps changed."""
    say("What is in the store, is it sound, and what did the last ten steps change?")
    run("ls", "--store", "killed", "-n", "4")
    run("verify", "--store", "killed", f"digits@{STEPS}")
    run("diff", "--store", "killed", f"digits@{STEPS - 10}", f"digits@{STEPS}", lines=18)


def damage_and_resume() -> None:
    """One bit of the newest checkpoint flips, and the one before it is taken."""
    say("One bit of the last checkpoint flips, as disks do now and then. Start again:")
    data = max(Path("killed").rglob(f"*_step_{STEPS:06d}.*.model.safetensors"))
    flip_a_bit(data)
    with program("killed") as process:
        process.wait()
    compare_again()


def compare_again() -> None:
    """The step that was damaged, trained once more, is what it was."""
    whole, killed = (standfast.Store(name).resolve("latest") for name in ("whole", "killed"))
    killed.verify()
    if whole.record.digests != killed.record.digests:
        sys.exit("the run differs after the damage")
    console.print(f"  step {killed.step} is whole again, with the same bytes\n", style="green")


def tell_the_cost() -> None:
    """How long a loop is held up by a save of ours and by those of others, in rounds."""
    state = make_state()
    nbytes = sum(tensor.nbytes for part in state.values() for tensor in part.values())
    say(f"How long is a loop held up by saving {nbytes / 1e6:.0f} MB? The medians of {ROUNDS}:")
    with (
        warnings.catch_warnings(),
        standfast.Checkpointer(
            "cost", standfast.TrainingState(**state), name="cost", every=1, quiet=True
        ) as ckpt,
    ):
        warnings.simplefilter("ignore")  # torch's, about a single process
        time.sleep(2)  # in which a program would load its data
        numbers = itertools.count()
        stager = DefaultStager(StagingOptions(False, False, False, False))
        saving: list[Any] = []

        def dcp_async() -> None:
            saving[:] = [
                async_save(
                    state, checkpoint_id=f"dcp{next(numbers)}", async_stager=stager, no_dist=True
                )
            ]

        def settle() -> None:
            ckpt.wait()
            for response in saving:
                getattr(response, "upload_completion", response).result()

        table = measure(
            {
                "Checkpointer.step": ckpt.step,
                "dcp.async_save": dcp_async,
                "dcp.save": lambda: save(state, checkpoint_id=f"dcp{next(numbers)}", no_dist=True),
                "torch.save": lambda: torch.save(state, "state.pt"),
            },
            settle,
        )
        stager.close()
    console.print(table)
    console.print()


def make_state() -> dict[str, dict[str, torch.Tensor]]:
    """A transformer of 8 layers with Adam's moments."""
    layer = torch.nn.TransformerEncoderLayer(d_model=768, nhead=12, dim_feedforward=2048)
    model = torch.nn.TransformerEncoder(layer, num_layers=8, enable_nested_tensor=False)
    weights = dict(model.state_dict())
    moments = {
        f"{name}.{moment}": torch.randn_like(value)
        for name, value in weights.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }
    return {"model": weights, "optimizer": moments}


def measure(ways: dict[str, Callable[[], object]], settle: Callable[[], None]) -> Table:
    """The medians; what is written in the background is waited for before the next begins."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():  # the first time each sets things up
        way()
        settle()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
            settle()
    table = Table(box=None, padding=(0, 3), show_header=False)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    for name, taken in seconds.items():
        table.add_row(name, f"{sorted(taken)[ROUNDS // 2] * 1e3:,.0f} ms")
    return table


def flip_a_bit(path: Path) -> None:
    """Change one bit of a file, at two thirds of it."""
    at = path.stat().st_size * 2 // 3
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    console.print(f"  byte {at:,}: {byte:#04x} is now {byte ^ 1:#04x}\n", style="dim")


def run(*arguments: str, lines: int = 100) -> None:
    """A command as the reader would type it, and what it prints, or the first lines of it."""
    show_command(f"standfast {' '.join(arguments)}")
    command = [sys.executable, "-c", "from standfast.cli import main; main()", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    printed = (done.stdout + done.stderr).splitlines()
    for line in [*printed[:lines], *(["…"] if len(printed) > lines else [])]:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print()


def show_command(text: str) -> None:
    """What a user would type."""
    console.print(f"  $ {text}", style="cyan")


def say(text: str) -> None:
    """A sentence of the story."""
    console.print(text, style="bold", soft_wrap=True)


if __name__ == "__main__":
    main()
