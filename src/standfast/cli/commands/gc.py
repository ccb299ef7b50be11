"""`standfast gc`: what runs do not keep is collected, once it was shown what would go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from standfast.display.output import count_text, print_json, say, size_text
from standfast.errors import BadOption, DamagedFile, printable
from standfast.policies import (
    AnyPolicy,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepTagged,
    Retention,
    as_bytes,
)
from standfast.store import Store
from standfast.store.query.listing import short_hashes
from standfast.store.retention.collection import Done, Line, Plan, carry_out, plan
from standfast.store.retention.trash import KEPT, Trash
from standfast.store.retention.verdicts import NOBODY_KNOWS, TOO_NEW

_DAYS = count_text(int(KEPT // 86400), "day")
_UNTIL = f"to be freed after {_DAYS}, or by `standfast gc --empty --yes`"
_SHOWN = 100
"""Of so many lines, all are shown; of more, the first and a count."""


def keep_wanted(
    last: int | None, best: Sequence[str], every: int | None, tagged: bool
) -> Retention | None:
    """What `--keep-…` asks for; None if nothing does."""
    policies: list[AnyPolicy] = []
    if last is not None:
        policies.append(KeepLast(last))
    policies += map(_best, best)
    if every is not None:
        policies.append(KeepEvery(steps=every))
    if tagged:
        policies.append(KeepTagged())
    return Retention(tuple(policies)) if policies else None


def _best(text: str) -> KeepBest:
    metric, _, mode = text.partition(":")
    if not metric or mode not in ("", "min", "max"):
        raise BadOption(f"--keep-best {text}: give METRIC, METRIC:min or METRIC:max")
    return KeepBest(1, metric, "max" if mode == "max" else "min")


def collect(
    store: Store,
    runs: Sequence[str],
    retention: Retention | None,
    to: str | None,
    *,
    yes: bool,
    as_json: bool,
) -> int:
    """Print what would go, or with `yes` delete it; returns the exit code.

    Without `to` the budget of the store counts, unless runs are named: what others take is not
    for these to make up for.
    """
    chosen = [store.find_run(ref).hash for ref in runs] or None
    made, budget = _planned(store, chosen, retention, to)
    done = carry_out(store, made) if yes and made.lines else None
    if as_json:
        print_json(_as_json(made, done))
        return _exit_code(made, done)
    if to is None and budget is not None:
        _print_budget(made, budget)
    if done is None:
        _print_plan(store, made, budget)
    else:
        _print_done(store, made, done)
    return _exit_code(made, done)


def plan_json(store: Store) -> dict[str, Any]:
    """What would go of all runs, for scripts."""
    return _as_json(_planned(store)[0], None)


def _planned(
    store: Store,
    chosen: list[str] | None = None,
    retention: Retention | None = None,
    to: str | None = None,
) -> tuple[Plan, int | None]:
    """What goes, and the budget of the store."""
    limit, budget, problems = as_bytes(to), *_budget(store)
    if to is None and chosen is None:
        limit = budget
    made = plan(store, chosen, retention, limit)
    made.problems |= problems if to is None else {}
    return made, budget


def _budget(store: Store) -> tuple[int | None, dict[str, str]]:
    """What a store may take, or why nobody knows."""
    try:
        return store.budget, {}
    except DamagedFile as error:
        return None, {"the budget of the store": str(error)}


def _exit_code(made: Plan, done: Done | None) -> int:
    """1 for damage, 2 for what could not be done."""
    if made.short or (done is not None and done.problems):
        return 2
    unknown = [why for why in made.problems.values() if why.startswith((NOBODY_KNOWS, TOO_NEW))]
    if len(unknown) < len(made.problems):
        return 1
    newer = any(why.startswith(TOO_NEW) for why in unknown)
    # A metric of the command line that no run has is a typing error; one that a run was told to
    # look at may come with its next checkpoint.
    return 2 if newer or (unknown and made.retention is not None and not made.lines) else 0


def empty_trash(store: Store, *, yes: bool, as_json: bool) -> None:
    """Print what the trash holds, or with `yes` empty it."""
    trash = Trash(store.backend)
    entries, nbytes = trash.entries(), trash.nbytes()
    if yes:
        nbytes = trash.empty()
    if as_json:
        print_json({"emptied": yes, "entries": len(entries), "bytes": nbytes})
    elif not entries:
        say("the trash is empty")
    elif yes:
        say(("emptied     ", "green"), f"the trash: {size_text(nbytes)} freed")
    else:
        say("would go    ", f"{count_text(len(entries), 'deletion')} in the trash")
        say(f"            {size_text(nbytes)} would be freed; --yes empties it")


def _print_budget(made: Plan, budget: int) -> None:
    takes = f"the store takes {size_text(made.total)}, its budget is {size_text(budget)}"
    if made.to is None and made.total > budget:
        say((f"{takes}: `standfast gc` without a run brings it down to that", "yellow"))
    else:
        say(takes)


def _print_plan(store: Store, made: Plan, budget: int | None) -> None:
    _print_problems(made.problems)
    if made.lines:
        _print_lines(store, made.lines)
    else:
        trash = Trash(store.backend).nbytes()
        within = f", {size_text(trash)} of it in the trash" if trash else ""
        is_over = made.short or (budget is not None and made.total > budget)
        nothing = "nothing goes" if is_over or made.problems else "nothing to do"
        say(f"{nothing}: the store takes {size_text(made.total)}{within}")
    if made.trashed:
        say(f"{size_text(made.trashed)} would go to the trash, {_UNTIL}")
    elif made.to is not None and any(line.kind == "checkpoint" for line in made.lines):
        say("the trash would be emptied for the space: what goes does not come back")
    elif not store.backend.links and any(line.kind == "checkpoint" for line in made.lines):
        say("there is no trash in an object store: what goes does not come back")
    _print_reached(made, made.after, "would take" if made.lines else "takes")
    if made.lines:
        say("--yes does it")


def _print_done(store: Store, made: Plan, done: Done) -> None:
    _print_problems({**made.problems, **done.problems})
    if done.lines:
        _print_lines(store, done.lines)
    for line, why in done.stayed.items():
        say(("stays       ", "yellow"), printable(f"{_what(line)}: {why}"))
    count = sum(line.kind == "checkpoint" for line in done.lines)
    freed = f", {size_text(done.freed)} freed" if done.freed else ""
    say((f"{count_text(count, 'checkpoint')} deleted{freed}", "green"))
    if done.trashed:
        say(f"the trash holds {size_text(done.trashed)}, {_UNTIL}")
    _print_reached(made, done.total, "takes")


def _print_reached(made: Plan, nbytes: int, takes: str) -> None:
    if made.to is None:
        return
    if made.lines:
        say(f"the store {takes} {size_text(nbytes)}, the trash included")
    if nbytes > made.to:
        say((f"short       {size_text(nbytes - made.to)} over {size_text(made.to)}", "yellow"))
        for why, count in made.protecting.items():
            stays = "stays" if count == 1 else "stay"
            say(f"            {count_text(count, 'checkpoint')} {stays}: {printable(why)}")


def _print_problems(problems: Mapping[str, str]) -> None:
    for run, why in problems.items():
        label = "in doubt    " if why.startswith(NOBODY_KNOWS) else "let be      "
        say((label, "bold red"), printable(f"{run}: {why}"))


def _print_lines(store: Store, lines: Sequence[Line]) -> None:
    """Print what goes, under a line for each run and reason."""
    labels = {listed.run: listed.name for listed in store.index.runs()}
    short = short_hashes({*labels, *(line.run for line in lines)})
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines[:_SHOWN]:
        groups.setdefault((line.run, line.why), []).append(line)
    total = size_text(sum(line.nbytes for line in lines))
    steps = max(len("total"), *(len(_step(line)) + 2 for line in lines))
    sizes = max(len(total), *(len(size_text(line.nbytes)) for line in lines))
    for (run, why), those in groups.items():
        name = printable(labels.get(run) or "—")
        say((name, "bold"), printable(f" {short[run]}: {why}"))
        for line in those:
            say(f"{_step(line):>{steps}}  {size_text(line.nbytes):>{sizes}}")
    say((f"{'total':{steps}}  {total:>{sizes}}", "bold"))
    if len(lines) > _SHOWN:
        say((f"… and {len(lines) - _SHOWN:,} more; --json lists them", "dim"))


def _step(line: Line) -> str:
    return str(line.step) if line.kind == "checkpoint" else line.kind


def _what(line: Line) -> str:
    return f"{line.run}@{line.step}" if line.kind == "checkpoint" else f"{line.kind} of {line.run}"


def _as_json(made: Plan, done: Done | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "done": done is not None,
        "lines": _lines(made.lines if done is None else done.lines),
        "bytes": sum(line.nbytes for line in (made.lines if done is None else done.lines)),
        "to_trash": made.trashed,
        "total_before": made.total,
        "total_after": made.after if done is None else done.total,
        "to": made.to,
        "short": made.short,
        "protecting": made.protecting,
        "problems": {**made.problems, **(done.problems if done else {})},
    }
    if done is not None:
        found |= {
            "freed": done.freed,
            "in_trash": done.trashed,
            "stayed": [{**asdict(line), "stays": why} for line, why in done.stayed.items()],
        }
    return found


def _lines(lines: Iterable[Line]) -> list[dict[str, Any]]:
    return [asdict(line) for line in lines]
