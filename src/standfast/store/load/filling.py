"""Fill a given tree with a saved state, in place, and say what fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.errors import RefusedState, RefusedTensor, StateMismatch
from standfast.store.schema.names import dotted, key_text
from standfast.store.tree.nodes import MAX_DEPTH
from standfast.store.tree.per_rank import PerRank
from standfast.store.tree.tree import Ref
from standfast.tensors import TensorSpec, source_of, why_not_fillable
from standfast.tensors.cast import cast_spec
from standfast.tensors.frameworks import shards_of

SHOWN = 20


@dataclass(frozen=True)
class LoadReport:
    """What a load found on both sides."""

    loaded: list[str] = field(default_factory=list)
    """The leaves that were filled, by their paths in the tree that was given."""
    missing: list[str] = field(default_factory=list)
    """Leaves of the given tree that the checkpoint does not have; they are as they were."""
    unexpected: list[str] = field(default_factory=list)
    """Leaves of the checkpoint that the given tree does not have."""
    mismatched: list[str] = field(default_factory=list)
    """Leaves that both have and that do not fit, each with the reason; they are as they were."""
    renamed: dict[str, str] = field(default_factory=dict)
    """The paths in the checkpoint that were given another."""

    @property
    def exact(self) -> bool:
        """Whether both sides had the same leaves, and all fitted."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        return "\n".join([f"{len(self.loaded):,} leaves fit", *self.differences()])

    def differences(self) -> list[str]:
        """What does not fit, a line each, of each kind the first few."""
        lines: list[str] = []
        for what, paths in (
            ("missing in the checkpoint", self.missing),
            ("unexpected in the checkpoint", self.unexpected),
            ("different", self.mismatched),
        ):
            lines += [f"{what}: {path}" for path in paths[:SHOWN]]
            if len(paths) > SHOWN:
                lines.append(f"{what}: and {len(paths) - SHOWN:,} more")
        return lines


def leaves_of(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their dotted paths; containers without a member are leaves too."""
    found: dict[str, Any] = {}
    pending: list[tuple[tuple[Any, ...], Any]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        if len(path) > MAX_DEPTH:
            raise RefusedState(
                f"{dotted(path)}: a tree of more than {MAX_DEPTH} levels, or a cycle"
            )
        if isinstance(node, PerRank):
            pending.append((path, node.tree))
        elif isinstance(node, dict) and node:
            pending += [((*path, key), member) for key, member in reversed(node.items())]
        elif isinstance(node, list | tuple) and node:
            pending += [((*path, i), member) for i, member in reversed(list(enumerate(node)))]
        else:
            name, count = dotted(path), 1
            while name in found:  # a key with a dot in it, or 0 beside "0"
                count += 1
                name = f"{dotted(path)}~{count}"
            found[name] = node
    return found


def renamed(leaves: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """The leaves by their new paths, with the old ones; a name stands for all below it too."""
    found: dict[str, tuple[str, Any]] = {}
    used = set()
    for path, leaf in leaves.items():
        new = path
        for old in sorted(rename, key=len, reverse=True):
            if path == old or path.startswith(f"{old}."):
                new = rename[old] + path[len(old) :]
                used.add(old)
                break
        if new in found:
            raise StateMismatch(
                f"rename: both {found[new][0]!r} and {path!r} would be {new!r}; nothing was loaded"
            )
        found[new] = (path, leaf)
    for old in rename:
        if old not in used:
            raise StateMismatch(f"rename: the checkpoint has nothing at {old!r}")
    return found


class Filling:
    """A given tree and a saved one, matched leaf by leaf before anything is changed."""

    def __init__(
        self,
        given: Any,
        saved: Any,
        spec: Callable[[int], TensorSpec],
        rename: Mapping[str, str] | None,
        cast: str | None = None,
    ) -> None:
        """`spec` is that of a saved tensor, before it is cast."""
        self._given = given
        self._spec = spec
        self._cast = cast
        self._saved = renamed(leaves_of(saved), rename or {})
        self._fits: dict[str, Any] = {}
        self.tensors: list[tuple[Any, int]] = []
        """The given tensors that are filled, and the number of the one that each becomes."""
        self.report = LoadReport(
            renamed={old: new for new, (old, _) in self._saved.items() if old != new}
        )
        mine = leaves_of(given)
        for path, leaf in mine.items():
            self._match(path, leaf)
        self.report.unexpected.extend(path for path in self._saved if path not in mine)

    def check(self) -> None:
        """Raise StateMismatch unless everything fits."""
        if not self.report.exact:
            raise StateMismatch(
                "\n".join(
                    [
                        "the checkpoint and the given tree differ, and nothing of it was filled:",
                        *self.report.differences(),
                        "strict=False fills what fits",
                    ]
                )
            )

    def _match(self, path: str, mine: Any) -> None:
        if callable(getattr(mine, "state_dict", None)):
            raise RefusedState(
                f"{path}: a {type(mine).__name__} is no tree of tensors: give its state_dict()"
            )
        if path not in self._saved:
            self.report.missing.append(path)
            return
        saved = self._saved[path][1]
        problem = self._problem(mine, saved)
        if problem:
            self.report.mismatched.append(f"{path}: {problem}")
        else:
            self._fits[path] = saved
            self.report.loaded.append(path)
            if isinstance(saved, Ref):
                self.tensors.append((mine, saved.tensor))

    def _problem(self, mine: Any, saved: Any) -> str | None:
        """Why a leaf cannot take the place of another."""
        spec = spec_of(mine)
        if isinstance(saved, Ref):
            before = self._spec(saved.tensor)
            expected = cast_spec(before, self._cast)
            if spec is None:
                return f"a tensor was saved, a {type(mine).__name__} is given"
            if spec != expected:
                cast = f", and becomes {expected.dtype}" if expected != before else ""
                return f"{_text(before)} was saved{cast}, {_text(spec)} is given"
            return why_not_fillable(mine)
        if spec is not None:
            return f"a {type(saved).__name__} was saved, a tensor is given"
        if isinstance(mine, dict | list | tuple) != isinstance(saved, dict | list | tuple):
            return f"a {type(saved).__name__} was saved, a {type(mine).__name__} is given"
        return None

    def fill(self, put: Callable[[Any, int], None]) -> Any:
        """Put everything that fits into the given tree; `put` fills one tensor."""
        return self._filled(self._given, (), iter(leaves_of(self._given)), put)

    def _filled(self, node: Any, path: tuple[Any, ...], paths: Any, put: Any) -> Any:
        if isinstance(node, PerRank):
            node.tree = self._filled(node.tree, path, paths, put)
            return node
        if isinstance(node, dict) and node:
            for key, member in node.items():
                node[key] = self._filled(member, (*path, key), paths, put)
            return node
        if isinstance(node, list) and node:
            node[:] = [
                self._filled(member, (*path, i), paths, put) for i, member in enumerate(node)
            ]
            return node
        if isinstance(node, tuple) and node:
            new = tuple(
                self._filled(member, (*path, i), paths, put) for i, member in enumerate(node)
            )
            return node if all(a is b for a, b in zip(node, new, strict=True)) else new
        saved = self._fits.get(next(paths), self)
        if saved is self:
            return node
        if isinstance(saved, Ref):
            put(node, saved.tensor)
            return node
        return saved


def spec_of(leaf: Any) -> TensorSpec | None:
    """The spec of a leaf that is a tensor."""
    if leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes | dict | list):
        return None
    try:
        shards = shards_of(leaf)
        return source_of(leaf).spec if shards is None else shards.spec
    except RefusedTensor:
        return None


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"


def move(tree: Any, rename: Mapping[str, str]) -> Any:
    """A saved tree with some of its nodes at other places, in dicts that are made if need be."""
    taken = [(new, _take(tree, old)) for old, new in rename.items()]
    for new, node in taken:
        _put(tree, new, node)
    return tree


def _take(tree: Any, path: str) -> Any:
    """Take what is at a dotted path out of the dict that holds it."""
    pending = [(tree, path)]
    while pending:
        node, rest = pending.pop()
        for key, member in _members(node):
            text = key_text(key)
            if text == rest and isinstance(node, dict):
                return node.pop(key)
            if rest.startswith(f"{text}."):
                pending.append((member, rest[len(text) + 1 :]))
    raise StateMismatch(f"rename: the checkpoint has nothing at {path!r} that a dict holds")


def _put(tree: Any, path: str, new: Any) -> None:
    *outer, last = path.split(".")
    node = tree
    for name in outer:
        found = [member for key, member in _members(node) if key_text(key) == name]
        if not found and isinstance(node, dict):
            node[name] = {}
            found = [node[name]]
        node = found[0] if found else None
    if not isinstance(node, dict):
        raise StateMismatch(f"rename: no dict can be made to hold {path!r}")
    if last in node:
        raise StateMismatch(f"rename: the checkpoint has something at {path!r} already")
    node[last] = new


def _members(node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    return enumerate(node) if isinstance(node, list | tuple) else ()
