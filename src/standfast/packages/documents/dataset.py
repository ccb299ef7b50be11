"""The data set of a package: `dataset.json`, and the same as plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from standfast.errors import BadOption
from standfast.packages.documents.records import Record, now


@dataclass(frozen=True)
class DatasetSample(Record):
    """One text that a model was trained on."""

    text: str
    prompt: str | None = None
    """What it was generated from."""
    tokens: int | None = None


@dataclass(frozen=True)
class DatasetMetadata(Record):
    """How large a data set is, and how it was made."""

    ABSENT: ClassVar = {"creation_date": str}

    total_samples: int = 0
    total_tokens: int | None = None
    creation_date: str = field(default_factory=now)
    generation_method: str = ""
    ollama_used: bool = False


@dataclass(frozen=True)
class DatasetInfo(Record):
    """What `dataset.json` says: the samples, and what is known of them all.

    >>> DatasetInfo.of_texts(texts, generation_method="collected").save("dataset.json")
    """

    metadata: DatasetMetadata
    samples: list[DatasetSample]

    @classmethod
    def of_texts(
        cls,
        texts: Iterable[str],
        count_tokens: Callable[[str], int] | None = None,
        **metadata: Any,
    ) -> Self:
        """A data set of these texts; other arguments are fields of its metadata.

        Without `count_tokens` the number of tokens is unknown.

        >>> DatasetInfo.of_texts(texts, lambda text: len(tokenizer.encode(text)))
        """
        if isinstance(texts, str):
            raise BadOption("texts is a single text: give a list of them, [text] for this one")
        counts = [(text, count_tokens(text) if count_tokens else None) for text in texts]
        samples = [DatasetSample(text, tokens=tokens) for text, tokens in counts]
        total = sum(tokens or 0 for _, tokens in counts) if count_tokens else None
        totals = {"total_samples": len(samples), "total_tokens": total}
        return cls(DatasetMetadata(**totals | metadata), samples)

    def text(self) -> str:
        """What `dataset.txt` holds: the texts, with an empty line between them."""
        return "\n\n".join(sample.text for sample in self.samples) + "\n"
