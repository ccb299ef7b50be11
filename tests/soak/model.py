"""What the journals of all processes allow: which reads were right, and what a store may hold.

All that a store holds is kept in registers: `alpha@5` is a checkpoint and holds the number of its
state, `tag x1` holds the number of the state that bears the tag. An operation writes registers at
some moment between its begin and its end. What a process was killed in, or failed at, may have
been done or not. So a read may give what some operation wrote that began before the end of the
read, unless another one, which was acknowledged, began later and ended before the read did begin.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.soak.journal import Entry, now
from tests.soak.reader import OnDisk, Wrong

ANY_BEFORE = "*"
"""What a restore writes: some state that the step had before."""
FULL = frozenset({"NotEnoughSpace", "WriteFailed"})
ROOM = 160 << 20
"""With less than this free, a save may find too little space."""
_ALWAYS = frozenset({"RunBusy"})
ALLOWED = {
    "save": {"StepExists", "Protected"},
    "background": {"SaveFailed"},
    "training": {"SaveFailed"},
    "tag": {"AmbiguousRef", "RefNotFound"},
    "untag": {"RefNotFound"},
    "note": {"RefNotFound"},
    "metrics": {"RefNotFound"},
    "rm": {"RefNotFound", "Protected"},
    "wipe": {"Protected", "RefNotFound"},
    "restore": {"StepExists", "RefNotFound", "AmbiguousRef"},
    "push": {"StepExists", "RefNotFound"},
    "pull": {"StepExists", "RefNotFound"},
    "load": {"RefNotFound"},
    "choose": {"RefNotFound", "NotAStore"},
}
"""What an operation may be refused with, at any time; whether it was right, the reads tell."""
READERS = frozenset({"load", "list", "verify", "fork"})
_SINGLE = frozenset({"save", "tag", "untag", "note", "metrics"})
"""Operations that have done nothing when they are refused, unless a write has failed."""


class Write(NamedTuple):
    """What an operation wrote into a register, or may have."""

    start: float
    end: float
    value: Any
    sure: bool


NOTHING = Write(-math.inf, -math.inf, None, True)
"""What a register holds before the first write."""


class Span(NamedTuple):
    start: float
    end: float


@dataclass
class Operation:
    """What a process was about to do, and what came of it."""

    process: str
    begin: Entry
    end: float
    outcome: str
    """`done`, `killed`, or the class of the error."""
    result: Entry = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.begin["kind"])

    @property
    def start(self) -> float:
        return float(self.begin["t"])

    def __str__(self) -> str:
        shown = {key: each for key, each in self.begin.items() if key not in ("t", "op")}
        return f"{self.process} {self.start:.3f} to {self.end:.3f} {shown}: {self.outcome}"


def operations(process: str, entries: list[Entry], died: float) -> Iterator[Operation]:
    """The operations of a process that ended at some time."""
    begun: dict[int, Entry] = {}
    for entry in entries:
        if "kind" in entry:
            begun[entry["op"]] = entry
        else:
            outcome = entry.get("refused") or "done"
            yield Operation(process, begun.pop(entry["op"]), entry["t"], outcome, entry)
    for entry in begun.values():
        yield Operation(process, entry, died, "killed")


class Model:
    """What is known of a store from the journals alone."""

    def __init__(self) -> None:
        self.registers: dict[str, list[Write]] = defaultdict(list)
        self.born: dict[int, Span] = {}
        """When the save of each number was under way."""
        self.at: dict[int, str] = {}
        """The register that each number was saved into."""
        self._ever: dict[str, set[int]] = defaultdict(set)
        """All numbers that a checkpoint has ever had."""
        self._saves: dict[str, list[int]] = defaultdict(list)
        """The numbers that were saved into each run."""
        self._policies: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._words: dict[int, list[tuple[str, Span, bool]]] = defaultdict(list)
        """Notes and late metrics, by the number of the state that they are about."""
        self._returned: dict[int, float] = {}
        """When a number was brought back from the other store, with the marks that it has there."""
        self._trashed: dict[str, tuple[Span, set[int]]] = {}
        self._spaces: list[Span] = []
        """When the disk was full."""
        self._emptied = -math.inf
        """When the trash was last emptied for the space."""

    # Taking in

    def take(self, found: list[Operation], full: list[Span]) -> list[Wrong]:
        """Take in all operations since the last time; returns what of their results is wrong."""
        self._spaces = full
        if full:
            self._emptied = max(self._emptied, *(span.end for span in full))
        for operation in found:
            self._write(operation)
        return [wrong for each in found for wrong in self._problems(each)]

    def _write(self, operation: Operation) -> None:
        begin, result, kind = operation.begin, operation.result, operation.kind
        done = operation.outcome == "done"
        if kind in _SINGLE and operation.outcome not in ("done", "killed", "WriteFailed"):
            return
        span = Span(operation.start, operation.end)
        for register, value in result.get("writes", begin.get("writes", {})).items():
            self.registers[register].append(Write(*span, value, done))
            if value == begin.get("number") and is_checkpoint(register):
                run = register.partition("@")[0]
                self._ever[register].add(value)
                self._saves[run].append(value)
                self.born[value], self.at[value] = span, register
        for register, value in begin.get("may", {}).items():
            self.registers[register].append(Write(*span, value, False))
        for run, policy in begin.get("policies", {}).items():
            self._policies[run].append(policy)
        if "word" in begin:
            self._words[begin["about"]].append((begin["word"], span, done))
        if kind == "pull" and operation.outcome != "RefNotFound":
            self._returned[begin["about"]] = operation.end
        if kind == "empty":
            self._emptied = max(self._emptied, operation.end)
        if kind == "rm" and begin["trash"] and done:
            [register] = begin["writes"]
            before = self.values(register, span.start, span.start)
            self._trashed[register] = (span, {each for each in before if each is not None})

    # What may be read

    def values(self, register: str, start: float, end: float, own: float = -1.0) -> set[Any]:
        """What a read in this time may give; `own` is the begin of a write that does not count."""
        writes = [NOTHING, *self.registers.get(register, ())]
        writes = [each for each in writes if each.start != own]
        latest = max(each.start for each in writes if each.sure and each.end < start)
        possible = {each.value for each in writes if each.start <= end and each.end >= latest}
        if ANY_BEFORE in possible:
            possible = possible - {ANY_BEFORE} | self._ever[register]
        if None not in possible and any(
            self._may_go(register, each, start, end) for each in possible
        ):
            possible.add(None)
        return possible

    def _may_go(self, register: str, number: Any, start: float, end: float) -> bool:
        """Whether a policy of its run may have deleted a checkpoint, as read in this time."""
        run = register.partition("@")[0]
        counts = [policy["last"] for policy in self._policies[run] if policy["last"]]
        if not counts or number not in self.born:
            return False
        later = [each for each in self._saves[run] if self.born[each].end > self.born[number].start]
        if len(set(later) - {number}) < min(counts):
            return False
        best = f"best {run}"
        marks = [name for name in self.registers if name.startswith("tag ") or name == best]
        return not any(self.values(name, start, end) == {number} for name in marks)

    # Results

    def _problems(self, operation: Operation) -> Iterator[Wrong]:
        begin, result, outcome = operation.begin, operation.result, operation.outcome
        start, end = operation.start, operation.end
        if wrong := result.get("wrong"):
            yield Wrong(wrong[0], f"{wrong[1]} ({operation})")
        if outcome not in ("done", "killed"):
            yield from self._refusal(operation)
        for register, value in result.get("reads", {}).items():
            yield from self._compare(register, value, start, end, f" ({operation})")
        for run, listed in result.get("listed", {}).items():
            for register in [name for name in self.registers if name.startswith(f"{run}@")]:
                value = listed.get(register.partition("@")[2])
                yield from self._compare(register, value, start, end, f" ({operation})")
        if "latest" in result:
            yield from self._latest(operation, *result["latest"])
        if operation.kind in ("save", "background") and outcome == "done":
            [register] = filter(is_checkpoint, begin["writes"])
            before = self.values(register, start, end, own=start)
            if not begin["replace"] and None not in before:
                yield Wrong("G3", f"{register} was saved over {shown(before)} ({operation})")

    def _refusal(self, operation: Operation) -> Iterator[Wrong]:
        kind, outcome, result = operation.kind, operation.outcome, operation.result
        if outcome in FULL and kind not in READERS:
            full = any(
                span.start <= operation.end and operation.start <= span.end for span in self._spaces
            )
            if full or result.get("free", math.inf) < ROOM:
                return
        if outcome not in _ALWAYS | ALLOWED.get(kind, set()) or (
            outcome in _ALWAYS and kind in READERS
        ):
            yield Wrong("an error that is not allowed", f"{result.get('text')} ({operation})")
        if kind == "save" and outcome == "StepExists":
            [register] = filter(is_checkpoint, operation.begin["writes"])
            possible = self.values(register, operation.start, operation.end)
            if possible == {None}:
                yield Wrong("G3", f"{register} does not exist ({operation})")
        if "about" in operation.begin and outcome == "RefNotFound" and kind != "pull":
            register = operation.begin["at"]
            if self.values(register, operation.start, operation.end) == {operation.begin["about"]}:
                yield Wrong("G1", f"{register} is there ({operation})")

    def _latest(self, operation: Operation, run: str | None, number: int | None) -> Iterator[Wrong]:
        began = -math.inf if number is None else self.born[number].end
        for register in [name for name in self.registers if is_checkpoint(name)]:
            if run not in (None, register.partition("@")[0]) or register.startswith("copy/"):
                continue
            values = self.values(register, operation.start, operation.end)
            if len(values) == 1 and None not in values:
                [newer] = values
                born = self.born[newer]
                if born.end < operation.start and born.start > began:
                    yield Wrong(
                        "G7",
                        f"latest was {number}, and {register} is {newer}, which was saved later "
                        f"({operation})",
                    )

    # What is on the disk

    def compare(self, disk: OnDisk, names: dict[str, str], prefix: str = "") -> Iterator[Wrong]:
        """What a store holds that it may not, or does not that it must; no process uses it."""
        end = now()
        found = {
            f"{prefix}{names.get(run, run)}@{step}": each
            for (run, step), each in disk.checkpoints.items()
        }
        own = {name for name in self.registers if is_checkpoint(name) and self._is_in(name, prefix)}
        for register in sorted(own | set(found)):
            each = found.get(register)
            yield from self._compare(register, each.number if each else None, end, end)
            if each is None:
                continue
            yield from self._compare_words(register, each.number, each.notes, prefix)
            policies = self._policies[register.partition("@")[0].removeprefix("copy/")]
            if each.dropped and not any(policy["drops"] for policy in policies):
                yield Wrong("G13", f"{register} is without {each.dropped}")
        if prefix:
            return
        yield from self._compare_order(found)
        yield from self._compare_tags(found, end)
        for run, file in disk.runs.items():
            for what, value in (("label", file.get("name")), ("keep", _kept(file))):
                register = f"{what} {names.get(run, run)}"
                if register in self.registers:
                    yield from self._compare(register, value, end, end)
        yield from self._compare_trash(disk, names)

    def _compare(
        self, register: str, value: Any, start: float, end: float, where: str = ""
    ) -> Iterator[Wrong]:
        """What is wrong if a read of this time has found a value in a register."""
        possible = self.values(register, start, end)
        if value not in possible:
            promise = "G12" if register.startswith("tag ") else "G1"
            if is_checkpoint(register) and value is None:
                promise = "G13" if self._policies[register.partition("@")[0]] else "G2"
            yield Wrong(promise, f"{register} is {value}, and may be {shown(possible)}{where}")

    def _is_in(self, register: str, prefix: str) -> bool:
        return register.startswith("copy/") == bool(prefix)

    def _compare_words(
        self, register: str, number: int, words: set[str], prefix: str
    ) -> Iterator[Wrong]:
        intended = {word for word, _, _ in self._words[number]}
        if foreign := words - intended:
            yield Wrong("G12", f"{register} ({number}) has {foreign}, which is of another one")
        since = self._returned.get(number, -math.inf)
        sure = {word for word, span, done in self._words[number] if done and span.start > since}
        if not prefix and (lost := sure - words):
            yield Wrong("G12", f"{register} ({number}) has lost {lost}")

    def _compare_order(self, found: dict[str, Any]) -> Iterator[Wrong]:
        known = [each for each in found.values() if each.number in self.born]
        ordered = sorted(known, key=lambda each: each.sequence)
        for a, b in pairwise(ordered):
            if self.born[b.number].end < self.born[a.number].start:
                yield Wrong(
                    "G7",
                    f"{self.at[a.number]} ({a.number}, sequence {a.sequence}) was saved after "
                    f"{self.at[b.number]} ({b.number}, sequence {b.sequence})",
                )

    def _compare_tags(self, found: dict[str, Any], end: float) -> Iterator[Wrong]:
        tags: dict[str, list[int]] = defaultdict(list)
        for each in found.values():
            for tag in each.tags:
                tags[f"tag {tag}"].append(each.number)
        for register in sorted(tags.keys() | {n for n in self.registers if n.startswith("tag ")}):
            possible = self.values(register, end, end)
            values = tags.get(register, [None])
            if len(values) > 1 or values[0] not in possible:
                yield Wrong("G12", f"{register} is on {values}, and may be on {shown(possible)}")

    def _compare_trash(self, disk: OnDisk, names: dict[str, str]) -> Iterator[Wrong]:
        """What `rm` has put into the trash is there, if nothing happened to the step since."""
        hashes = {name: run for run, name in names.items()}
        for register, (span, numbers) in self._trashed.items():
            run, _, step = register.partition("@")
            once = len(self._since_trashed(register)) == 1 and len(numbers) == 1
            if once and self._emptied < span.start:
                there = disk.trash.get((hashes[run], int(step)), set())
                if not numbers <= there:
                    yield Wrong("G15", f"{register} ({numbers}) is not in the trash, {there} is")

    def _since_trashed(self, register: str) -> list[Write]:
        start = self._trashed[register][0].start if register in self._trashed else math.inf
        return [each for each in self.registers[register] if each.end > start]

    def settle(self, disk: OnDisk, names: dict[str, str], prefix: str = "") -> None:
        """Take what is on the disk for what is: whatever was in doubt is known now."""
        at = now()
        checkpoints = {
            f"{prefix}{names.get(run, run)}@{step}": each
            for (run, step), each in disk.checkpoints.items()
        }
        tags = {f"tag {tag}": each.number for each in checkpoints.values() for tag in each.tags}
        for register, writes in list(self.registers.items()):
            if is_checkpoint(register) and self._is_in(register, prefix):
                value = checkpoints[register].number if register in checkpoints else None
                self._ever[register] |= {w.value for w in writes if isinstance(w.value, int)}
            elif register.startswith("tag ") and not prefix:
                value = tags.get(register)
            else:
                continue
            if value is not None or len(self._since_trashed(register)) != 1:
                self._trashed.pop(register, None)
            self.registers[register] = [Write(at, at, value, True)]


def is_checkpoint(register: str) -> bool:
    return "@" in register


def shown(possible: set[Any]) -> str:
    return " or ".join(sorted(map(str, possible)))


def _kept(file: dict[str, Any]) -> str | None:
    """The policies of a run file, as the soak calls them."""
    retention = file.get("retention")
    return None if retention is None else "+".join(each["policy"] for each in retention["keep"])
