"""The original at work on its database: its own options and merge operator, over the bare C API.

python -m tests.signing.original LIBRARY FOLDER WORD…, each word in its turn:

    put:FAMILY:KEY:VALUE   stores a value; key and value are hex
    add:DAY:AMOUNT         merges an amount into the volume of a day
    flush                  writes what is in memory into data files
    show:FAMILY:KEY        prints the value in hex
    die                    ends as a process that is killed: nothing is closed

It shares no code with the room. A volume whose value has another length than eight bytes is lost to
its merge operator, as it would be to the original's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from typing import Any

FAMILIES = (
    "default",
    "group",
    "event",
    "request",
    "proposal",
    "request_input",
    "signer_ack",
    "partial_sig",
    "volume",
    "seen",
)
NUMBER_BYTES = 8
SATURATED = 2**64 - 1
OPERATOR = ctypes.create_string_buffer(b"volume_merge")
LISTS = (POINTER(c_void_p), POINTER(c_size_t), c_int, POINTER(c_ubyte), POINTER(c_size_t))
FULL = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, *LISTS)
PARTIAL = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t, *LISTS)
DESTROY = CFUNCTYPE(None, c_void_p)
NAME = CFUNCTYPE(c_void_p, c_void_p)

libc = ctypes.CDLL(None)
libc.malloc.restype = c_void_p
libc.malloc.argtypes = [c_size_t]


def added(numbers: list[bytes], success: Any, size: Any) -> int:
    """The sum, in memory that RocksDB frees."""
    known = [int.from_bytes(each, "big") for each in numbers if len(each) == NUMBER_BYTES]
    value = min(sum(known), SATURATED).to_bytes(NUMBER_BYTES, "big")
    at: int = libc.malloc(NUMBER_BYTES)
    ctypes.memmove(at, value, NUMBER_BYTES)
    size[0], success[0] = NUMBER_BYTES, 1
    return at


def full(*given: Any) -> int:
    """The value, if there is one, and the operands."""
    *_, value, value_size, operands, sizes, count, success, size = given
    before = [ctypes.string_at(value, value_size)] if value else []
    more = [ctypes.string_at(operands[n], sizes[n]) for n in range(count)]
    return added([*before, *more], success, size)


def partial(*given: Any) -> int:
    """Operands without a value."""
    *_, operands, sizes, count, success, size = given
    return added([ctypes.string_at(operands[n], sizes[n]) for n in range(count)], success, size)


def destroy(_state: int) -> None:
    """Nothing is kept."""


def name(_state: int) -> int:
    """The name of the operator in RocksDB."""
    return ctypes.addressof(OPERATOR)


class Original:
    """Its database, open."""

    def __init__(self, library: str, folder: str) -> None:
        self.library = ctypes.CDLL(library)
        # RocksDB calls them for as long as the database is open.
        self.functions = (DESTROY(destroy), FULL(full), PARTIAL(partial), NAME(name))
        self.options = self.call("options_create", c_void_p)
        for option in ("create_if_missing", "create_missing_column_families", "use_fsync"):
            self.call(f"options_set_{option}", None, self.options, c_int(1))
        operator = self.call(
            "mergeoperator_create", c_void_p, None, *self.functions[:3], None, self.functions[3]
        )
        volumes = self.call("options_create", c_void_p)
        self.call("options_set_merge_operator", None, volumes, operator)
        count = len(FAMILIES)
        names = (c_char_p * count)(*(each.encode() for each in FAMILIES))
        by_family = [volumes if each == "volume" else self.options for each in FAMILIES]
        handles = (c_void_p * count)()
        self.database = self.checked(
            "open_column_families",
            c_void_p,
            self.options,
            folder.encode(),
            c_int(count),
            names,
            (c_void_p * count)(*by_family),
            handles,
        )
        self.families = dict(zip(FAMILIES, handles, strict=True))
        self.writing = self.call("writeoptions_create", c_void_p)
        self.reading = self.call("readoptions_create", c_void_p)

    def call(self, function: str, result: Any, *arguments: object) -> int:
        """A C function; numbers are addresses unless they say otherwise."""
        wrapped = [c_void_p(each) if isinstance(each, int) else each for each in arguments]
        called = self.library[f"rocksdb_{function}"]
        called.restype = result
        return called(*wrapped)  # type: ignore[no-any-return]

    def checked(self, function: str, result: Any, *arguments: object) -> int:
        """The same for a function whose last parameter is an error."""
        error = c_char_p()
        answer = self.call(function, result, *arguments, ctypes.byref(error))
        if error.value is not None:
            raise SystemExit(f"{function}: {error.value!r}")
        return answer

    def write(self, act: str, family: str, key: bytes, value: bytes) -> None:
        """Put or merge."""
        arguments = (key, c_size_t(len(key)), value, c_size_t(len(value)))
        self.checked(
            f"{act}_cf", None, self.database, self.writing, self.families[family], *arguments
        )

    def get(self, family: str, key: bytes) -> bytes:
        """A value, empty if there is none."""
        size = c_size_t()
        at = self.checked(
            "get_cf",
            c_void_p,
            self.database,
            self.reading,
            self.families[family],
            key,
            c_size_t(len(key)),
            ctypes.byref(size),
        )
        return ctypes.string_at(at, size.value) if at else b""

    def flush(self) -> None:
        """Write every family into data files."""
        options = self.call("flushoptions_create", c_void_p)
        for handle in self.families.values():
            self.checked("flush_cf", None, self.database, options, handle)

    def close(self) -> None:
        """Close it, its families first."""
        for handle in self.families.values():
            self.call("column_family_handle_destroy", None, handle)
        self.call("close", None, self.database)


def volume_key(day: str) -> bytes:
    return b"vol:" + int(day).to_bytes(NUMBER_BYTES, "big")


def main(library: str, folder: str, *words: str) -> None:
    """Do each word in its turn."""
    original = Original(library, folder)
    for word in words:
        match word.split(":"):
            case ["put", family, key, value]:
                original.write("put", family, bytes.fromhex(key), bytes.fromhex(value))
            case ["add", day, amount]:
                original.write(
                    "merge", "volume", volume_key(day), int(amount).to_bytes(NUMBER_BYTES, "big")
                )
            case ["show", family, key]:
                sys.stdout.write(f"{original.get(family, bytes.fromhex(key)).hex()}\n")
                sys.stdout.flush()
            case ["flush"]:
                original.flush()
            case ["die"]:
                os._exit(9)
            case _:
                raise SystemExit(f"what is {word}?")
    original.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
