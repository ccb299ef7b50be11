"""Another process that acts at a certain moment, which an operation of a backend tells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from standfast import Store
from tests.kit.seams import Seams


def again(store: Store) -> Store:
    """The same store, as another process sees it."""
    return Store(Path(store.url).parent)


def meanwhile(
    seams: Seams,
    store: Store,
    operation: str,
    name: str,
    act: Callable[[], object],
    after: bool = False,
) -> None:
    """Act once: before (or after) the first such operation on a name in which this one is."""
    acts = iter([act])

    def acting(do: Any, asked: str, *more: Any, **options: Any) -> Any:
        now = next(acts, None) if name in asked else None
        if now and not after:
            now()
        result = do(asked, *more, **options)
        if now and after:
            now()
        return result

    seams.backend(store.backend, **{operation: acting})
