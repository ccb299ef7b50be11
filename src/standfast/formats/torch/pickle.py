"""The pickle inside torch's zip checkpoints, read without torch and without Python's pickle.

A small machine of its own goes through the opcodes that `torch.save` writes, protocols 2 to 5. It
imports nothing and calls nothing that the bytes name: `globals.py` has a table of what the names
stand for. All work is linear in the number of bytes.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from standfast.errors import (
    BadPickle,
    LimitExceeded,
    RefusedPickle,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.formats.torch.globals import Globals
from standfast.formats.torch.tree import check_tree
from standfast.formats.torch.values import HINT, MAX_NAME, StoredTensor, Stub

__all__ = ["StoredTensor", "Stub", "read_pickle"]

MAX_INTEGER: Final = 1 << 10
"""Bytes of an integer; one of more than 4,300 digits Python does not even print."""
MAX_NODES: Final = 10_000_000
"""Values that a walk through the tree meets; shared ones are met more than once."""
COPIES: Final = 8
"""How often each byte may be copied on its way into the tree; writers need at most three."""


def read_pickle(data: bytes, *, tensors_only: bool = False) -> Any:
    """The tree in a pickle of torch's, with a `StoredTensor` in the place of each tensor.

    Parameters are their tensors. torch.Size is a tuple; dtypes, devices and layouts are text
    ("torch.float32", "cuda:0", "torch.strided"); defaultdict and Counter are dictionaries. An
    OrderedDict keeps its `_metadata`, no other attribute. NumPy's arrays, scalars and dtypes of
    plain numbers and text are what they were. What stands twice in the pickle is one object.

    A name that is no data raises RefusedPickle; with `tensors_only` a `Stub` stands in the place
    of its value, and whatever the pickle puts into that value is left out with it. A key that is
    such a value becomes a stub with a number, so that no item is lost.
    """
    machine = _Machine(data, tensors_only)
    tree = machine.run()
    check_tree(tree, machine.globals, max(MAX_NODES, len(data)))
    return tree


# Opcodes. The machine itself knows those that make up nearly all of a checkpoint.

MARK: Final = ord("(")
STOP: Final = ord(".")
BININT1: Final = ord("K")
BININT2: Final = ord("M")
BINPERSID: Final = ord("Q")
REDUCE: Final = ord("R")
BINUNICODE: Final = ord("X")
BINGET: Final = ord("h")
LONG_BINGET: Final = ord("j")
BINPUT: Final = ord("q")
LONG_BINPUT: Final = ord("r")
TUPLE: Final = ord("t")
EMPTY_TUPLE: Final = ord(")")
PROTO: Final = 0x80
TUPLE1: Final = 0x85
TUPLE2: Final = 0x86
NEWFALSE: Final = 0x89
SHORT_BINUNICODE: Final = 0x8C
MEMOIZE: Final = 0x94

_OPERAND: Final = {BININT1: 1, BINGET: 1, BINPUT: 1, SHORT_BINUNICODE: 1}
_read_2: Final = struct.Struct("<H").unpack_from
_read_4: Final = struct.Struct("<I").unpack_from


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, data: bytes, tensors_only: bool) -> None:
        self.data = data
        self.opcode_at = 0
        self.at = 0
        """The offset of what is read next."""
        self.stack: list[Any] = []
        """The values above the last mark."""
        self.below: list[list[Any]] = []
        """The values below each mark."""
        self.memo: dict[int, Any] = {}
        self.globals = Globals(COPIES * len(data), tensors_only)

    def run(self) -> Any:
        """The one value that the pickle leaves on the stack."""
        try:
            self._read_protocol()
            return self._run()
        except RefusedPickle as error:
            raise RefusedPickle(f"offset {self.opcode_at}: {error}{HINT}") from None
        except StandfastError as error:
            raise type(error)(f"offset {self.opcode_at}: {error}") from None

    def _read_protocol(self) -> None:
        opcode, protocol = self.take(2)
        if opcode != PROTO:
            raise BadPickle(f"expected the opcode PROTO, found {bytes([opcode])!r}")
        if not 2 <= protocol <= 5:
            raise UnsupportedFile(f"pickle protocol {protocol}, expected 2 to 5")

    def _run(self) -> Any:
        # The frequent opcodes are in one long function, by their frequency, for a call of each
        # takes longer than the opcode itself. The others are in the table below.
        data, memo, stack, below, at = self.data, self.memo, self.stack, self.below, self.at
        storage, call = self.globals.storage, self.globals.call
        opcode = PROTO
        try:
            while True:
                opcode = data[at]
                at += 1
                if opcode == LONG_BINPUT:
                    memo[_read_4(data, at)[0]] = stack[-1]
                    at += 4
                elif opcode == BINGET:
                    stack.append(memo[data[at]])
                    at += 1
                elif opcode == BININT1:
                    stack.append(data[at])
                    at += 1
                elif opcode == BINPUT:
                    memo[data[at]] = stack[-1]
                    at += 1
                elif opcode == MEMOIZE:
                    memo[len(memo)] = stack[-1]
                elif opcode == MARK:
                    below.append(stack)
                    stack = []
                elif opcode == TUPLE:
                    items = tuple(stack)
                    stack = below.pop()
                    stack.append(items)
                elif opcode == REDUCE:
                    self.opcode_at = at - 1
                    arguments = stack.pop()
                    stack[-1] = call(stack[-1], arguments)
                elif opcode == TUPLE2:
                    second = stack.pop()
                    stack[-1] = (stack[-1], second)
                elif opcode == BINUNICODE:
                    end = at + 4 + _read_4(data, at)[0]
                    if end > len(data):
                        raise struct.error
                    stack.append(data[at + 4 : end].decode())
                    at = end
                elif opcode == SHORT_BINUNICODE:
                    end = at + 1 + data[at]
                    if end > len(data):
                        raise struct.error
                    stack.append(data[at + 1 : end].decode())
                    at = end
                elif opcode == TUPLE1:
                    stack[-1] = (stack[-1],)
                elif opcode == BINPERSID:
                    self.opcode_at = at - 1
                    stack[-1] = storage(stack[-1])
                elif opcode == EMPTY_TUPLE:
                    stack.append(())
                elif opcode == NEWFALSE:
                    stack.append(False)
                elif opcode == BININT2:
                    stack.append(_read_2(data, at)[0])
                    at += 2
                elif opcode == LONG_BINGET:
                    stack.append(memo[_read_4(data, at)[0]])
                    at += 4
                elif opcode == STOP:
                    self.opcode_at, self.at, self.stack = at - 1, at, stack
                    return self._stop()
                else:
                    self.opcode_at, self.at, self.stack = at - 1, at, stack
                    OPCODES.get(opcode, _refuse_opcode)(self)
                    at, stack = self.at, self.stack
        except struct.error:
            self.opcode_at = at - 1
            raise TruncatedFile("the pickle ends before the end of a value") from None
        except (IndexError, KeyError, UnicodeDecodeError) as error:
            self.opcode_at = at - 1
            if at + _OPERAND.get(opcode, 0) > len(data) or at >= len(data):
                raise TruncatedFile("the pickle ends before its opcode STOP") from None
            raise BadPickle(_FAILURES[type(error)]) from None

    def _stop(self) -> Any:
        if self.below or len(self.stack) != 1:
            raise BadPickle(
                "at the opcode STOP one value must be left, found "
                f"{len(self.stack) + sum(map(len, self.below))} and {len(self.below)} marks"
            )
        if self.at < len(self.data):
            raise TrailingBytes(f"{len(self.data) - self.at:,} bytes follow the opcode STOP")
        return self.stack.pop()

    def take(self, length: int) -> bytes:
        """The next bytes."""
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise TruncatedFile(
                f"the pickle ends {self.at - len(self.data):,} bytes before the end of a value"
            )
        return self.data[start : self.at]

    def take_counted(self, width: int) -> bytes:
        """The next bytes, whose count of `width` bytes stands before them."""
        return self.take(int.from_bytes(self.take(width), "little"))

    def take_line(self) -> str:
        """The next line, as the one opcode of text has them."""
        end = self.data.find(b"\n", self.at, self.at + MAX_NAME)
        if end < 0 and len(self.data) - self.at >= MAX_NAME:
            raise LimitExceeded(f"a name of over {MAX_NAME} bytes")
        if end < 0:
            raise TruncatedFile("the pickle ends within a name")
        line = self.take(end + 1 - self.at)
        return line[:-1].decode()

    def pop_items(self) -> list[Any]:
        """The values above the last mark, which goes with them."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def leaves_out(self, target: Any) -> bool:
        """Whether what is put into this value goes with it."""
        return self.globals.tensors_only and isinstance(target, Stub)


_FAILURES: Final[dict[type, str]] = {
    IndexError: "the opcode takes more values than the stack has",
    KeyError: "the opcode gets a value of the memo that was never put there",
    UnicodeDecodeError: "the text is not UTF-8",
}


# The opcodes that are not frequent


def _long(machine: _Machine, width: int) -> None:
    length = int.from_bytes(machine.take(width), "little", signed=width > 1)
    if length < 0:
        raise BadPickle(f"an integer of {length} bytes")
    if length > MAX_INTEGER:
        raise LimitExceeded(f"an integer of {length:,} bytes, over {MAX_INTEGER:,}")
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


def _tuple_3(machine: _Machine) -> None:
    third, second = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1] = (machine.stack[-1], second, third)


def _append(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is list:
        target += items
    elif not machine.leaves_out(target):
        raise BadPickle(f"values are appended to a value of type {type(target).__name__}")


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if len(items) % 2:
        raise BadPickle("a key without a value")
    if type(target) is dict or type(target) is OrderedDict:
        put = machine.globals.put
        for key, value in zip(items[::2], items[1::2], strict=True):
            put(target, key, value)
    elif not machine.leaves_out(target):
        raise BadPickle(f"items are set in a value of type {type(target).__name__}")


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_items(machine, [key, value])


def _add_items(machine: _Machine) -> None:
    items, target = machine.pop_items(), machine.stack[-1]
    if type(target) is set:
        target.update(map(machine.globals.key, items))
    elif not machine.leaves_out(target):
        raise BadPickle(f"members are added to a value of type {type(target).__name__}")


def _frozen_set(machine: _Machine) -> None:
    items = machine.pop_items()
    machine.stack.append(frozenset(map(machine.globals.key, items)))


def _global(machine: _Machine) -> None:
    module, name = machine.take_line(), machine.take_line()
    machine.stack.append(machine.globals.find(module, name))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise BadPickle("a name that is not made of two texts")
    machine.stack.append(machine.globals.find(module, name))


def _new_object(machine: _Machine) -> None:
    arguments = machine.stack.pop()
    machine.stack[-1] = machine.globals.call(machine.stack[-1], arguments)


def _new_object_by_keywords(machine: _Machine) -> None:
    keywords, arguments = machine.stack.pop(), machine.stack.pop()
    # No function of the table takes keywords: given two arguments of these types all refuse.
    machine.stack[-1] = machine.globals.call(machine.stack[-1], (arguments, keywords))


def _build(machine: _Machine) -> None:
    state = machine.stack.pop()
    machine.stack[-1] = machine.globals.build(machine.stack[-1], state)


def _frame(machine: _Machine) -> None:
    length = int.from_bytes(machine.take(8), "little")
    if length > len(machine.data) - machine.at:
        raise TruncatedFile(f"a frame of {length:,} bytes, but the pickle ends before its end")


def _refuse_opcode(machine: _Machine) -> None:
    opcode = machine.data[machine.at - 1 : machine.at]
    name = _REFUSED.get(opcode, "which pickle does not have")
    raise BadPickle(f"the opcode {opcode!r} ({name}) is none that a writer of tensors uses")


def _pushes(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


OPCODES: Final[dict[int, Callable[[_Machine], None]]] = {
    ord("N"): _pushes(lambda machine: None),
    0x88: _pushes(lambda machine: True),
    ord("J"): _pushes(lambda machine: int.from_bytes(machine.take(4), "little", signed=True)),
    0x8A: lambda machine: _long(machine, 1),
    0x8B: lambda machine: _long(machine, 4),
    ord("G"): _pushes(lambda machine: struct.unpack(">d", machine.take(8))[0]),
    0x8D: _pushes(lambda machine: machine.take_counted(8).decode()),
    ord("C"): _pushes(lambda machine: machine.take_counted(1)),
    ord("B"): _pushes(lambda machine: machine.take_counted(4)),
    0x8E: _pushes(lambda machine: machine.take_counted(8)),
    0x96: _pushes(lambda machine: bytearray(machine.take_counted(8))),
    0x87: _tuple_3,
    ord("]"): _pushes(lambda machine: []),
    ord("a"): lambda machine: _append(machine, [machine.stack.pop()]),
    ord("e"): lambda machine: _append(machine, machine.pop_items()),
    ord("}"): _pushes(lambda machine: {}),
    ord("s"): _set_item,
    ord("u"): lambda machine: _set_items(machine, machine.pop_items()),
    0x8F: _pushes(lambda machine: set()),
    0x90: _add_items,
    0x91: _frozen_set,
    ord("c"): _global,
    0x93: _stack_global,
    0x81: _new_object,
    0x92: _new_object_by_keywords,
    ord("b"): _build,
    0x95: _frame,
}
_REFUSED: Final = {
    b"I": "INT",
    b"L": "LONG",
    b"F": "FLOAT",
    b"S": "STRING",
    b"V": "UNICODE",
    b"g": "GET",
    b"p": "PUT",
    b"d": "DICT",
    b"l": "LIST",
    b"i": "INST",
    b"o": "OBJ",
    b"P": "PERSID",
    b"T": "BINSTRING",
    b"U": "SHORT_BINSTRING",
    b"0": "POP",
    b"1": "POP_MARK",
    b"2": "DUP",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
    b"\x80": "PROTO",
    b"\x97": "NEXT_BUFFER",
    b"\x98": "READONLY_BUFFER",
}
