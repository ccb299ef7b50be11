"""A process that does random operations on a store: `python -m tests.soak.worker SETTINGS`.

It writes into its journal what it is about to do, and what came of it. It ends when there is a
file `stop`, or after so many operations.
"""

import faulthandler
import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import standfast
from standfast.errors import FellBack, RefNotFound, StandfastError
from standfast.parallel import SingleRank
from standfast.policies import KeepAll, KeepLast, Policies, Policy, Retention
from standfast.store import Checkpoint, Run, Store
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.maintenance.verify import verify_store
from standfast.store.retention import collection
from standfast.store.retention.trash import Trash
from standfast.training.state import model_of
from tests.soak.journal import Journal
from tests.soak.states import LARGE, TORCH, TRAINING, State, difference, mismatch, state

RUNS: Final = ("alpha", "beta", "gamma", "scratch")
RETAINED, WIPED = "gamma", "scratch"
TRAININGS: Final = ("training0", "training1")
STEPS = 10
TAGS: Final = ("x0", "x1", "x2", "x3")
DAYS = 3
"""How far clocks are off; two of these are less than the trash keeps its entries."""
HANGS = 120
"""Seconds after which an operation is taken to hang."""
POLICIES: Final[dict[str, tuple[Policy | Policies, dict[str, Any]]]] = {
    "last": (KeepLast(4), {"last": 4, "drops": False}),
    "last+all": (KeepLast(2) | KeepAll(without="optimizer"), {"last": None, "drops": True}),
    "all": (KeepAll(), {"last": None, "drops": False}),
}
WEIGHTS: Final = {
    "save": 30, "train": 5, "load": 14, "list": 8, "tag": 5, "untag": 4, "note": 5, "metrics": 4,
    "rm": 8, "wipe": 1, "restore": 5, "retain": 2, "collect": 3, "rename": 2, "push": 4, "pull": 3,
    "verify": 1, "doctor": 2, "fork": 2, "clock": 2, "reopen": 3,
}  # fmt: skip


class Settings(NamedTuple):
    """What a worker is told."""

    store: str
    other: str
    journal: str
    stop: str
    seed: int
    first: int
    """Its numbers begin here; no other process has them."""
    operations: int
    links: bool


Result = dict[str, Any] | None


class Worker:
    """Does operations, one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._journal = Journal(Path(settings.journal))
        self._random = random.Random(settings.seed)
        self._operation = 0
        self._number = settings.first
        self._offset = 0.0
        self._open: dict[str, Run] = {}
        self.store = Store(settings.store)
        self._other = Store(settings.other)

    def work(self) -> None:
        """Do operations until it is time to stop."""
        self._set_clock()
        parent = os.getppid()
        while not os.path.exists(self._settings.stop) and os.getppid() == parent:
            if 0 < self._settings.operations <= self._operation:
                return
            [chosen] = self._random.choices([*WEIGHTS], [*WEIGHTS.values()])
            if self._is_short() and self._random.random() < 0.5:
                chosen = self._random.choice(("rm", "rm", "empty", "wipe", "collect"))
            try:
                getattr(self, f"_{chosen}")()
                if self._random.random() < 0.7:
                    self.let_go()
            except StandfastError as error:  # while something was chosen to do it with
                self.do("choose", lambda error=error: _raise(error))

    def do(self, kind: str, action: Callable[[], Result], **told: Any) -> bool:
        """Do one operation, with its entries in the journal; whether it was done."""
        self._operation += 1
        number = self._operation
        self._journal.write(op=number, kind=kind, **told)
        return self._end([number], action) is not None

    def _end(self, numbers: list[int], action: Callable[[], Result]) -> Result:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        said: dict[str, Any] = {}
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = action() or {}
            if fell := [str(each.message) for each in caught if each.category is FellBack]:
                result |= {"wrong": ["G10", f"fell back: {fell[0]}"]}
            said = {**result, "warned": [each.category.__name__ for each in caught]}
            return result
        except StandfastError as error:
            said = {
                "refused": type(error).__name__,
                "errno": getattr(error, "errno", None),
                "text": str(error)[:500],
                "free": self._free(),
            }
            return None
        except Exception:
            said = {"refused": "crash", "text": traceback.format_exc()[-3000:]}
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number in numbers:
                self._journal.write(op=number, **said)

    def let_go(self) -> None:
        """Let other processes have the runs."""
        for run in self._open.values():
            run.close()
        self._open.clear()

    def close(self) -> None:
        self.let_go()
        self.store.close()
        self._other.close()
        self._journal.close()

    def _run(self, name: str) -> Run:
        if name not in self._open:
            self._open[name] = run_of(self.store, name)
        return self._open[name]

    def _known(self, name: str, store: Store | None = None) -> Run:
        """The run of a name, which reading does not make."""
        if name == WIPED:
            found = (store or self.store).known_run(name)
            if found is None:
                raise RefNotFound(f"there is no run {name}")
            return found
        return self._run(name) if store is None else run_of(store, name)

    def _free(self) -> int:
        status = os.statvfs(self._settings.store)
        return status.f_bavail * status.f_frsize

    def _is_short(self) -> bool:
        status = os.statvfs(self._settings.store)
        return status.f_bavail < 0.35 * status.f_blocks

    def _next(self, *kinds: int) -> int:
        """A number that no other save has, of one of these kinds, or of any."""
        self._number += 10
        kind = self._random.choice(kinds) if kinds else self._random.randrange(9)
        if kind == LARGE and self._random.random() < 0.5:
            kind += 1
        return self._number + kind

    def _pick(self, *names: str) -> tuple[str, Checkpoint] | None:
        """Some checkpoint of these runs that is there now; not that of the last check."""
        name = self._random.choice(names)
        found = [each for each in self._run(name).checkpoints() if each.step != STEPS]
        return (name, self._random.choice(found)) if found else None

    # Saving

    def _save(self) -> None:
        self.save(self._random.choice(RUNS), self._random.randrange(STEPS))

    def save(self, name: str, step: int, replace: bool | None = None) -> bool:
        number = self._next()
        chosen = self._random.random() < 0.5 if replace is None else replace
        best = self._random.random() < 0.15
        options: dict[str, Any] = {"comm": SingleRank()} if self._random.random() < 0.3 else {}
        if number % 10 == TORCH:
            options["format"] = "torch"
        writes: dict[str, Any] = {f"{name}@{step}": number}
        if best:
            writes |= {f"best {name}": number}

        def act() -> Result:
            saved = self._run(name).save(
                step,
                state(number),
                metrics={"number": number, "loss": self._random.random()},
                best=best,
                replace=chosen,
                **options,
            )
            return {"sequence": saved.sequence}

        return self.do("save", act, writes=writes, number=number, replace=chosen)

    def _train(self) -> None:
        """Save in the background, beside a loop that changes the state at once."""
        name = self._random.choice(TRAININGS)
        parts = state(self._next(TRAINING))
        policy, told = POLICIES["last"]
        self.let_go()

        def enter() -> Result:
            checkpointer.__enter__()
            number = parts["info"]["number"] if checkpointer.resume_report.ref else None
            wrong = mismatch(parts) if number is not None else ""
            return {"latest": [name, number]} | ({"wrong": ["G20", wrong]} if wrong else {})

        checkpointer = standfast.Checkpointer(
            self._settings.store,
            standfast.TrainingState(**parts),
            name=name,
            trial=name,
            every=1,
            keep=policy,
            quiet=True,
        )
        keep = {f"keep {name}": "last"}
        if not self.do("training", enter, writes=keep, policies={name: told}):
            return
        waiting: list[int] = []
        failed: list[Exception] = []
        try:
            for _ in range(self._random.randrange(2, 7)):
                number, step = self._next(TRAINING), checkpointer.next_step
                self._operation += 1
                waiting.append(self._operation)
                self._journal.write(
                    op=self._operation,
                    kind="background",
                    writes={f"{name}@{step}": number},
                    number=number,
                    replace=True,
                )
                _fill(parts, state(number))
                try:
                    checkpointer.step(step, number=number)
                    _fill(parts, state(TRAINING))
                    if self._random.random() < 0.4:
                        checkpointer.wait()
                        self._end(waiting, lambda: None)
                        waiting = []
                except Exception as error:  # of one of those that wait; others may still be saved
                    failed.append(error)
                    return
        finally:
            self._operation += 1
            self._journal.write(op=self._operation, kind="training")

            def leave() -> None:
                checkpointer.__exit__(None, None, None)
                for error in failed:
                    raise error

            self._end([*waiting, self._operation], leave)

    # Reading

    def _load(self) -> None:
        name, what = self._random.choice((*RUNS, *TRAININGS)), self._random.randrange(6)
        step = self._random.randrange(STEPS)
        if what == 0:
            self.do("load", lambda: self._latest(name))
        elif what == 1:
            self.do("load", lambda: self._latest(None))
        elif what == 2:
            tag = self._random.choice(TAGS)
            self.do("load", lambda: self._read(f"tag {tag}", lambda: self._tagged(tag)))
        elif what == 3:
            self.do("load", lambda: self._checked(self._known(name).load("best")))
        elif what == 4:
            self.do("load", lambda: self._part(name, step))
        else:
            read = lambda: self._known(name).load(step)  # noqa: E731
            self.do("load", lambda: self._read(f"{name}@{step}", read))

    def _checked(self, loaded: State) -> dict[str, Any]:
        wrong = mismatch(loaded)
        return {"wrong": ["G4", wrong]} if wrong else {}

    def _read(self, register: str, read: Callable[[], State]) -> Result:
        try:
            loaded = read()
        except RefNotFound:
            return {"reads": {register: None}}
        return self._checked(loaded) | {"reads": {register: loaded["info"]["number"]}}

    def _tagged(self, tag: str) -> State:
        loaded: State = self.store.resolve(tag).state()
        return loaded

    def _latest(self, name: str | None) -> Result:
        try:
            loaded = self._known(name).load() if name else self.store.resolve("latest").state()
        except RefNotFound as error:
            if name is None:  # what was found was deleted before it was read
                return {"found": str(error)}
            return {"latest": [name, None]}
        return self._checked(loaded) | {"latest": [name, loaded["info"]["number"]]}

    def _part(self, name: str, step: int) -> Result:
        try:
            checkpoint = self._known(name).checkpoint(step)
            part = checkpoint.state(part="model", mapped=self._random.random() < 0.5)
        except RefNotFound:
            return {"reads": {f"{name}@{step}": None}}
        number = int(checkpoint.metrics["number"])
        wrong = difference(state(number)["model"], part.get("model", part))
        return {"reads": {f"{name}@{step}": number}} | ({"wrong": ["G4", wrong]} if wrong else {})

    def _list(self) -> None:
        def act() -> Result:
            store = Store(self._settings.store) if self._random.random() < 0.3 else self.store
            name = self._random.choice((*RUNS, *TRAININGS))
            try:
                found = self._known(name, store).checkpoints()
            except RefNotFound:
                return {"listed": {name: {}}}
            return {"listed": {name: {str(c.step): c.head.metrics["number"] for c in found}}}

        self.do("list", act)

    def _verify(self) -> None:
        def act() -> Result:
            found = verify_store(self.store)
            wrong = found.damaged or found.unverified
            return {"wrong": ["G9", str(wrong)[:2000]]} if wrong else {}

        self.do("verify", act)

    def _doctor(self) -> None:
        def act() -> Result:
            found = examine(self.store.backend, self.store.index)
            wrong = (
                found.damaged
                or found.unverified
                or {k: v for k, v in found.restored.items() if ".pt" not in k}
            )
            return {"wrong": ["G9", f"{found}"[:2000]]} if wrong else {}

        self.do("doctor", act)
        if self._random.random() < 0.5:
            self.do("clean", lambda: clean(self.store.backend, self.store.index))

    def _fork(self) -> None:
        """Let a child read from a store that is open, while this process goes on."""
        self._run("alpha").checkpoints()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                faulthandler.dump_traceback_later(HANGS, exit=True)
                with suppress(RefNotFound):
                    code = 2 if mismatch(self._run("alpha").load()) else 0
                code = code if code == 2 else 0
                time.sleep(self._random.random())
            finally:
                os._exit(code)
        self._save()

        def act() -> Result:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            return {"wrong": ["G8", f"a forked child ended with {code}"]} if code else {}

        self.do("fork", act)

    # Marks

    def _tag(self) -> None:
        if (picked := self._pick(*RUNS)) and (about := self._about(*picked)):
            tag = self._random.choice(TAGS)
            writes = {f"tag {tag}": about["about"]}
            self.do("tag", lambda: picked[1].tag(tag), writes=writes, **about)

    def _untag(self) -> None:
        tag = self._random.choice(TAGS)
        self.do("untag", lambda: self.store.untag(tag), writes={f"tag {tag}": None})

    def _note(self) -> None:
        if (picked := self._pick(*RUNS)) and (about := self._about(*picked)):
            word = f"note {self._next()}"
            self.do("note", lambda: picked[1].note(word), word=word, **about)

    def _metrics(self) -> None:
        if (picked := self._pick(*RUNS)) and (about := self._about(*picked)):
            word, best = f"late_{self._next()}", self._random.random() < 0.3
            writes = {f"best {picked[0]}": about["about"]} if best else {}
            act = lambda: picked[1].add_metrics({word: 1.5}, best=best)  # noqa: E731
            self.do("metrics", act, word=word, writes=writes, **about)

    def _about(self, name: str, checkpoint: Checkpoint) -> dict[str, Any]:
        number = checkpoint.head.metrics["number"]
        return {"about": number, "at": f"{name}@{checkpoint.step}"}

    def _rename(self) -> None:
        name = self._random.choice(("alpha", "beta"))
        label = f"{name} {self._next()}"
        self.do("rename", lambda: self._run(name).rename(label), writes={f"label {name}": label})

    # Deleting

    def _rm(self) -> None:
        name, step = self._random.choice(RUNS), self._random.randrange(STEPS)
        trash = self._random.random() < 0.6

        def act() -> Result:
            self._run(name).delete(step, trash="rm" if trash else None)
            return {}

        self.do("rm", act, writes={f"{name}@{step}": None}, trash=trash and self._settings.links)

    def _wipe(self) -> None:
        trash = self._random.random() < 0.6
        writes = {f"{WIPED}@{step}": None for step in range(STEPS + 1)}

        def act() -> Result:
            self._open.pop(WIPED, self.store.run(WIPED)).delete_all(trash="rm" if trash else None)
            return {}

        self.do("wipe", act, writes=writes)

    def _restore(self) -> None:
        entries = [each for each in Trash(self.store.backend).entries() if each.checkpoints]
        if not entries:
            return
        entry = self._random.choice(entries)
        names = {self._run(name).hash: name for name in RUNS}
        name, steps = names.get(entry.run), entry.steps
        if name is None:
            return
        if not entry.whole or self._random.random() < 0.5:
            steps = [self._random.choice(steps)]
        writes = {f"{name}@{step}": "*" for step in steps}

        def act() -> Result:
            self.store.restore(entry.run, *steps)
            return {}

        self.do("restore", act, writes=writes)

    def _retain(self) -> None:
        keep = self._random.choice([*POLICIES])
        policy, told = POLICIES[keep]
        act = lambda: {"problems": self._run(RETAINED).retain(policy).problems}  # noqa: E731
        self.do("retain", act, writes={f"keep {RETAINED}": keep}, policies={RETAINED: told})

    def _collect(self) -> None:
        """What `standfast gc` does: for all runs what they keep, or less of one."""
        keep = Retention((KeepLast(3),)) if self._random.random() < 0.4 else None
        told = {RETAINED: {"last": 3, "drops": False}} if keep else {}

        def act() -> Result:
            runs = {self._run(RETAINED).hash} if keep else None
            made = collection.plan(self.store, runs, keep)
            return {"problems": collection.carry_out(self.store, made, wait=30.0).problems}

        self.do("collect", act, policies=told)

    def _empty(self) -> None:
        self.do("empty", lambda: {"freed": Trash(self.store.backend).empty()})

    # Copies

    def _push(self) -> None:
        if picked := self._pick(*RUNS):
            name, checkpoint = picked
            about = self._about(name, checkpoint)
            writes = {f"copy/{about['at']}": about["about"]}
            check = self._random.random() < 0.3
            act = lambda: {"n": checkpoint.copy_to(self._other, check=check).nbytes}  # noqa: E731
            self.do("push", act, writes=writes, **about)

    def _pull(self) -> None:
        name = self._random.choice(RUNS)
        try:
            checkpoint = self._random.choice(
                self._other.find_run(self._run(name).hash).checkpoints()
            )
        except (StandfastError, IndexError):  # nothing was pushed so far
            return
        about = self._about(name, checkpoint)
        may = {f"tag {tag}": about["about"] for tag in checkpoint.tags}
        may |= {f"best {name}": about["about"]}
        act = lambda: {"n": checkpoint.copy_to(self.store).nbytes}  # noqa: E731
        self.do("pull", act, writes={about["at"]: about["about"]}, may=may, **about)

    # The process itself

    def _clock(self) -> None:
        self._offset = self._random.uniform(-DAYS, DAYS) * 86400

    def _set_clock(self) -> None:
        """Let the library see the clock of this worker, wherever it looks at one."""
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self._offset  # type: ignore[assignment]
        time.time_ns = lambda: real_ns() + int(self._offset * 1e9)  # type: ignore[assignment]

    def _reopen(self) -> None:
        self.let_go()
        self.store.close()
        self.store = Store(self._settings.store)


def run_of(store: Store, name: str) -> Run:
    """The run of a name; that of a training is one of its model too."""
    if name in TRAININGS:
        model = model_of(standfast.TrainingState(**state(TRAINING)))
        return store.run(name, model=model, trial=name)
    return store.run(name)


def _raise(error: Exception) -> Result:
    raise error


def _fill(parts: State, new: State) -> None:
    """Change a tree in place."""
    for key, value in new.items():
        if isinstance(value, dict):
            _fill(parts[key], value)
        elif hasattr(value, "shape"):
            parts[key][...] = value
        else:
            parts[key] = value


if __name__ == "__main__":
    worker = Worker(Settings(*json.loads(sys.argv[1])))
    worker.work()
    worker.close()
