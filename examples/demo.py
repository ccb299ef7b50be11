"""Save a state, damage it, see that it is found; the same in a store; the speed beside others.

Run it with `make demo`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from rich.console import Console
from rich.table import Table

import holdfast

console = Console(highlight=False)
ROUNDS = 5


def main() -> None:
    """Tell the story in a folder of its own, on the disk that this file lies on."""
    build = Path(__file__).parent.parent / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        os.chdir(folder)
        state = make_state()
        tell_the_damage(state)
        tell_the_conversion(state)
        tell_the_store(state)
        tell_the_speed(state)


def make_state() -> dict[str, torch.Tensor]:
    """A transformer of 8 layers with Adam's moments: 529 MB."""
    layer = torch.nn.TransformerEncoderLayer(d_model=768, nhead=12, dim_feedforward=2048)
    model = torch.nn.TransformerEncoder(layer, num_layers=8, enable_nested_tensor=False)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        for name, value in model.state_dict().items():
            state[f"optimizer.{name}.{moment}"] = torch.randn_like(value)
    return state


def tell_the_damage(state: dict[str, torch.Tensor]) -> None:
    """Save, verify, flip one bit, verify again."""
    nbytes = sum(tensor.nbytes for tensor in state.values())
    say(f"A training state of {len(state)} tensors, {nbytes / 1e6:.0f} MB, saved with its digests.")
    show_code('holdfast.save("step_100.safetensors", state, {"step": 100, "loss": 0.25})')
    holdfast.save("step_100.safetensors", state, {"step": 100, "loss": 0.25})
    run("verify", "step_100.safetensors")

    say("One bit of it flips, as disks and networks do now and then.")
    flip_a_bit(Path("step_100.safetensors"))
    safetensors.torch.load_file("step_100.safetensors")
    say("safetensors loads the file without a word. Holdfast does not:")
    run("verify", "step_100.safetensors")
    try:
        holdfast.load("step_100.safetensors", framework="torch")
    except holdfast.DamagedFile as error:
        console.print(f"  holdfast.load raised {type(error).__name__}\n", style="bold red")
    else:
        sys.exit("the damage was not found")


def tell_the_conversion(state: dict[str, torch.Tensor]) -> None:
    """From torch's own format and back to numbers that differ."""
    say("A file of torch.save, read without torch's unpickler, converted and compared:")
    state = {name: state[name] for name in list(state)[:12]}
    torch.save({"model": state, "epoch": 3}, "model.pt")
    run("convert", "model.pt", "model.safetensors")
    name = next(iter(state))
    state[name] = state[name].clone()
    state[name][0, :3] += 0.5
    holdfast.save("tuned.npz", {f"model.{name}": value for name, value in state.items()})
    say("Three elements of one tensor are changed. Where, and by how much?")
    run("diff", "model.safetensors", "tuned.npz")


def tell_the_store(state: dict[str, torch.Tensor]) -> None:
    """Save two steps into a store, damage the second, see the first come back."""
    say("A store keeps a run step by step. One tensor differs in the second step:")
    show_code('run = holdfast.Store("experiments").run("demo", hp={"lr": 3e-4})')
    training = holdfast.Store("experiments").run("demo", hp={"lr": 3e-4})
    training.save(100, state, metrics={"loss": 0.25})
    name = next(name for name, tensor in state.items() if tensor.nbytes > 1 << 20)
    training.save(200, {**state, name: state[name] + 1}, metrics={"loss": 0.2}, best=True)
    run("ls", "--store", "experiments")

    say("One bit of the second step flips.")
    [data] = Path("experiments/checkpoints/models").glob("*/*_step_000200.*.safetensors")
    flip_a_bit(data)
    show_code('run.load("latest")')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = training.load("latest")
    console.print(f"  {said[0].category.__name__}: {said[0].message}\n", style="yellow")
    if not all(torch.equal(loaded[name], tensor) for name, tensor in state.items()):
        sys.exit("the step before it did not come back")
    say(f"Step 100 came back, all {len(state)} tensors of it, bit for bit.")


def flip_a_bit(path: Path) -> None:
    """Change one bit of a file, at two thirds of it."""
    at = path.stat().st_size * 2 // 3
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    console.print(f"  byte {at:,}: {byte:#04x} is now {byte ^ 1:#04x}\n", style="dim")


def tell_the_speed(state: dict[str, torch.Tensor]) -> None:
    """Durable saves and verified loads beside those of others, in interleaved rounds."""
    say("What does it cost? The same state, durable on the disk, then loaded cold:")

    def save_safetensors() -> None:
        safetensors.torch.save_file(state, "b.safetensors")
        fsync("b.safetensors")

    def save_torch() -> None:
        torch.save(state, "c.pt")
        fsync("c.pt")

    ways: dict[str, tuple[str, Callable[[], object], Callable[[], object]]] = {
        "holdfast, digests written and checked": (
            "a.safetensors",
            lambda: holdfast.save("a.safetensors", state),
            lambda: holdfast.load("a.safetensors", framework="torch"),
        ),
        "safetensors + fsync, nothing checked": (
            "b.safetensors",
            save_safetensors,
            lambda: touch(safetensors.torch.load_file("b.safetensors")),
        ),
        "torch.save + fsync, nothing checked": (
            "c.pt",
            save_torch,
            lambda: torch.load("c.pt", weights_only=True),
        ),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, (path, save, load) in ways.items():
            for which, act in enumerate((save, load)):
                start = time.perf_counter()
                act()
                seconds.setdefault((name, which), []).append(time.perf_counter() - start)
                forget(path)
    size = sum(tensor.nbytes for tensor in state.values()) / 1e9
    table = Table(box=None, header_style="bold")
    table.add_column()
    for column in ("durable save", "cold load"):
        table.add_column(column, justify="right", min_width=14)
    for name in ways:
        speeds = (size / statistics.median(seconds[name, which]) for which in (0, 1))
        table.add_row(f"  {name}", *(f"{speed:.2f} GB/s" for speed in speeds))
    console.print(table)
    console.print(f"\n  Medians of {ROUNDS} rounds. `make bench` measures this with care.")


def fsync(path: str) -> None:
    """Wait until a file is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def forget(path: str) -> None:
    """Drop a file from the page cache, as a restart would."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def touch(tensors: dict[str, torch.Tensor]) -> None:
    """Read one byte of every page, so that mapped tensors are really there."""
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8)[::4096].sum()


def say(text: str) -> None:
    """A sentence of the story."""
    console.print(text, style="bold", soft_wrap=True)


def show_code(code: str) -> None:
    """A line of Python as the reader would type it."""
    console.print(f"  >>> {code}\n", markup=False, style="cyan")


def run(*arguments: str) -> None:
    """A command as the reader would type it, and what it prints."""
    console.print(f"  $ holdfast {' '.join(arguments)}", style="cyan")
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    for line in (done.stdout + done.stderr).splitlines():
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print(f"  exit code {done.returncode}\n", style="dim")


if __name__ == "__main__":
    main()
