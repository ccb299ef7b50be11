"""The names in a store: which file is which, and what people may call runs and tags."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from standfast.errors import BadLabel, shortened

VARIABLE: Final = "STANDFAST_STORE"
"""The environment variable that says where the store is."""
MODELS: Final = "models"
SETTINGS: Final = "HP"
SAMPLES: Final = "data"
DAMAGED: Final = "damaged"
TRASH: Final = ".standfast/trash"
MANIFEST: Final = "manifest.yaml"
MAX_STEP: Final = 1 << 53
MAX_SEQUENCE: Final = 1 << 53
"""Steps and sequence numbers are below these, so that any reader of JSON has them exactly."""
FORGED_SEQUENCE: Final = MAX_SEQUENCE // 2
"""No store counts this far: from here on, a number was made up. No save gets one."""
LAST_COPIED: Final = FORGED_SEQUENCE - (1 << 32)
"""The last number that is taken over from elsewhere: it leaves enough for the saves after it."""
RESERVED: Final = frozenset({"latest", "best"})
"""What refers to a checkpoint by itself, and so is no name."""
LONGEST: Final = 200
SHORTEST: Final = 4
"""Of a hash, fewer characters than these are a typing error rather than a reference."""

_RUN: Final = re.compile("[0-9a-z]{24}")
_OWN: Final = re.compile(
    r"(?P<run>[0-9a-z]{24})"
    r"(?:(?P<file>_run\.json)|(?P<architecture>_architecture\.(?:json|pkl))"
    r"|_step_(?P<step>[0-9]{6}|[1-9][0-9]{6,15})"
    r"(?:(?P<record>\.json)|(?P<marks>\.marks\.json)|(?P<name>\.pt)"
    r"|\.[0-9a-f]{8}\.[a-z0-9_-]{1,40}\.(?:safetensors|pth)))"
)


class Named(NamedTuple):
    """A file of ours in the folder of a run, by its name."""

    kind: str
    """`run`, `architecture`, `record`, `marks`, `data`, or `name`: the one that V3 gives it."""
    run: str
    step: int


def is_run(text: str) -> bool:
    """Whether this is the name of a run's folder."""
    return _RUN.fullmatch(text) is not None


def run_in(name: str) -> str | None:
    """The run that the name of an object belongs to."""
    parts = name.split("/")
    is_one = len(parts) == 3 and parts[0] == MODELS and is_run(parts[1])
    return parts[1] if is_one else None


def run_folder(run: str) -> str:
    """The folder of a run."""
    return f"{MODELS}/{run}"


def run_file(run: str) -> str:
    """The file that says what a run is."""
    return f"{MODELS}/{run}/{run}_run.json"


def record_file(run: str, step: int) -> str:
    """The record of a checkpoint."""
    return f"{MODELS}/{run}/{run}_step_{step:06d}.json"


def marks_file(run: str, step: int) -> str:
    """The tags and notes of a checkpoint."""
    return f"{MODELS}/{run}/{run}_step_{step:06d}.marks.json"


def data_file(run: str, step: int, token: str, label: str, suffix: str = ".safetensors") -> str:
    """A data file, by its name within the folder of its run."""
    return f"{run}_step_{step:06d}.{token}.{label}{suffix}"


def whole_file(run: str, step: int) -> str:
    """The name that layout V3 has for a checkpoint which is one torch file."""
    return f"{MODELS}/{run}/{run}_step_{step:06d}.pt"


def architecture_file(run: str, suffix: str = ".json") -> str:
    """What the model of a run is; with the suffix `.pkl`, the model itself, pickled."""
    return f"{MODELS}/{run}/{run}_architecture{suffix}"


def config_file(run: str) -> str:
    """The hyperparameters of a run, for people and for programs that know layout V3."""
    return f"{SETTINGS}/{run}/{run}_config.yaml"


def data_state_file(run: str) -> str:
    """The samples of a run, likewise."""
    return f"{SAMPLES}/{run}/{run}_data_state.yaml"


def parse(name: str, folder: str) -> Named | None:
    """What a file in the folder of a run is; None if it is none of ours.

    Data files of other runs may be linked in; all else bears the name of its folder.
    """
    match = _OWN.fullmatch(name)
    if match is None:
        return None
    kind = next(
        (kind for kind in ("record", "marks", "name", "architecture") if match[kind]), "data"
    )
    if match["file"]:
        kind = "run"
    if kind != "data" and match["run"] != folder:
        return None
    return Named(kind, match["run"], int(match["step"] or 0))


def is_token(text: str) -> bool:
    """Whether this is what tells one save of a step from another."""
    return re.fullmatch("[0-9a-f]{8}", text) is not None


def is_label(text: str) -> bool:
    """Whether this may be the label of a part."""
    return re.fullmatch("[a-z0-9_-]{1,40}", text) is not None


def label_of(key: str) -> str:
    """What the data files of a part are called."""
    # Of the 40 characters a label may have, some are kept to tell equal ones apart.
    return re.sub("[^a-z0-9_-]+", "-", key.lower())[:32].strip("-") or "part"


def check_label(text: str, what: str) -> str:
    """A name for a run or a tag, as it was given; raises BadLabel."""
    if not isinstance(text, str):
        raise BadLabel(f"{what} is a {type(text).__name__}: it must be a str")
    if not 1 <= len(text) <= LONGEST:
        raise BadLabel(
            f"{what} {shortened(text)!r} has {len(text)} characters: it must have 1 to {LONGEST}"
        )
    if text in RESERVED:
        raise BadLabel(f"{what} {text!r} is a word that already refers to a checkpoint")
    if "/" in text or "@" in text or not text.isprintable() or text != text.strip():
        raise BadLabel(
            f"{what} {text!r} must not contain '/', '@' or control characters, nor start or end "
            "with a space"
        )
    return text


def dotted(path: tuple[object, ...]) -> str:
    """A path in a tree as text: `optimizer.state.0.exp_avg`; that of the root is `state`."""
    return ".".join(map(key_text, path)) if path else "state"


def key_text(key: object) -> str:
    """A key of a tree as text that can be written as UTF-8."""
    if isinstance(key, int) and key.bit_length() > 256:
        return hex(key)  # Python refuses to write thousands of decimal digits
    text = str(key)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_text(text: str) -> bool:
    """Whether UTF-8 has the text: there is no lone surrogate in it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
