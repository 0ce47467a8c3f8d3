"""Guards on Python state that are compared in C. A model of many layers reads thousands of attributes, of its modules
and their classes: to look at one takes C a quarter of the time that a line of Python takes.

C compares identities alone. What it finds to be another object is compared in Python, which knows of values that are
equal, and decides.

Where a dict has a version tag (PEP 509: another one whenever it is written to), its guards hold for as long as it has
the tag that it had when all of them were found to hold.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attrs import frozen

from ..backends import build
from ..backends.c_language import HOW
from ..errors import BuildError
from ..source import Constants
from ..state.guards import Guard
from ..state.places import MISSING, Place
from ..state.renewed import Brought
from ..state.state import print_state_guards

FEWEST = 32
"""To call C takes as long as this many lines of Python, or fewer."""

_ITEM, _EMPTY, _ENTRIES, _ORDERED, _MEMBERS, _CELL, _TYPE, _ATTRIBUTES, _CODE, _UNWRITTEN = range(10)

_TAG = 3
"""The word of a dict that is its version tag."""

_SOURCE = f"""{HOW}-O2
#include <stddef.h>

/* What Python's stable interface has of them: its headers need not be installed. */
typedef struct object PyObject;
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
int PyDict_Next(PyObject *, ptrdiff_t *, PyObject **, PyObject **);
ptrdiff_t PyDict_Size(PyObject *);
ptrdiff_t PySet_Size(PyObject *);
int PySet_Contains(PyObject *, PyObject *);
ptrdiff_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, ptrdiff_t);
PyObject *PyCell_Get(PyObject *);
PyObject *PyFunction_GetCode(PyObject *);
PyObject *PyObject_GenericGetDict(PyObject *, void *);
PyObject *PyObject_Type(PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyIter_Next(PyObject *);
void Py_DecRef(PyObject *);

struct row {{
  ptrdiff_t how;
  PyObject *owner;
  union {{ PyObject *key; ptrdiff_t rows; }};  /* how many follow of an owner that may be unwritten */
  union {{ PyObject *value; size_t tag; }};
}};

/* It lives where it was found: a reference of one's own is not needed to compare it. */
static PyObject *borrowed(PyObject *now) {{
  if (now) Py_DecRef(now);
  return now;
}}

/* The keys and values of a dict, in turn, are those of a tuple. */
static int has_entries(PyObject *dict, PyObject *were) {{
  ptrdiff_t at = 0, i = 0;
  PyObject *key, *value;
  if (2 * PyDict_Size(dict) != PyTuple_Size(were)) return 0;
  for (; PyDict_Next(dict, &at, &key, &value); i += 2)
    if (key != PyTuple_GetItem(were, i) || value != PyTuple_GetItem(were, i + 1)) return 0;
  return 1;
}}

/* The same in the order that an OrderedDict has beside a dict's. */
static int has_ordered(PyObject *dict, PyObject *iterate, PyObject *were) {{
  ptrdiff_t i = 0, n = PyTuple_Size(were);
  if (2 * PyDict_Size(dict) != n) return 0;
  PyObject *keys = PyObject_CallFunctionObjArgs(iterate, dict, (PyObject *)0), *key;
  int same = keys != 0;
  for (; same && (key = PyIter_Next(keys)); i += 2) {{
    same = i < n && key == PyTuple_GetItem(were, i);
    same = same && PyDict_GetItemWithError(dict, key) == PyTuple_GetItem(were, i + 1);
    Py_DecRef(key);
  }}
  if (keys) Py_DecRef(keys);
  return same && i == n;
}}

static int has_members(PyObject *set, PyObject *were) {{
  ptrdiff_t n = PyTuple_Size(were);
  if (PySet_Size(set) != n) return 0;
  for (ptrdiff_t i = 0; i < n; i++)
    if (PySet_Contains(set, PyTuple_GetItem(were, i)) != 1) return 0;
  return 1;
}}

static int is_as_it_was(const struct row *row) {{
  switch (row->how) {{
    case {_ITEM}: return PyDict_GetItemWithError(row->owner, row->key) == row->value;
    case {_EMPTY}: return !PyDict_Size(row->owner);
    case {_ENTRIES}: return has_entries(row->owner, row->value);
    case {_ORDERED}: return has_ordered(row->owner, row->key, row->value);
    case {_MEMBERS}: return has_members(row->owner, row->value);
    case {_CELL}: return borrowed(PyCell_Get(row->owner)) == row->value;
    case {_TYPE}: return borrowed(PyObject_Type(row->owner)) == row->value;
    case {_ATTRIBUTES}: return borrowed(PyObject_GenericGetDict(row->owner, 0)) == row->value;
    case {_CODE}: return PyFunction_GetCode(row->owner) == row->value;
  }}
  return 0;
}}

/* The first row, from one on, that is not as it was; n, if there is none. */
ptrdiff_t first_that_differs(struct row *rows, ptrdiff_t at, ptrdiff_t n) {{
  while (at < n) {{
    struct row *row = rows + at++;
    if (row->how != {_UNWRITTEN}) {{
      if (!is_as_it_was(row)) return at - 1;
      continue;
    }}
    size_t tag = ((size_t *)row->owner)[{_TAG}];
    ptrdiff_t end = at + row->rows;
    if (tag == row->tag) {{ at = end; continue; }}
    for (; at < end; at++) if (!is_as_it_was(rows + at)) return at;
    row->tag = tag;
  }}
  return n;
}}
"""


def print_state(
    guards: Sequence[Guard], constant: Constants, otherwise: str, brought: Brought | None = None
) -> list[str]:
    """Python lines that run ``otherwise`` where a guard does not hold; what they raise means so, too."""
    if (rows := GuardRows.among(guards, constant.is_brought)) is None:
        return print_state_guards(guards, constant, otherwise, brought)
    compared = set(map(id, rows.guards))
    others = [guard for guard in guards if id(guard) not in compared]
    aside = f"  # {len(compared)} guards on Python state, compared in C"
    return [
        f"if {constant(rows.are_broken)}(): {otherwise}{aside}",
        *print_state_guards(others, constant, otherwise, brought),
    ]


_PLAIN = {str, int, float, bool, type(None), object, type}
"""What the keys of a ``functools.lru_cache`` are made of: to find one runs no code of the caller's."""

_Row = tuple[int, Any, Any, Any]
"""How to compare, whose it is, its key, and what it was; ``MISSING`` stands for nothing. Of ``_UNWRITTEN``, how many
rows follow of that dict, and nothing."""


@frozen(eq=False)
class GuardRows:
    """Guards, and the rows that C compares for them."""

    rows: Sequence[_Row]
    of_rows: Sequence[Guard | None]
    first_that_differs: Callable[[int], int]

    @property
    def guards(self) -> list[Guard]:
        return [guard for guard in self.of_rows if guard is not None]

    @staticmethod
    def among(guards: Iterable[Guard], is_brought: Callable[[Any], bool]) -> GuardRows | None:
        """Those that C can compare; None where they are few, or nothing compiles C. ``is_brought``: whether an object
        stands for another one in each call."""
        found = [
            (guard, row)
            for guard in guards
            if not (isinstance(guard.place.owner, Place) or is_brought(guard.place.owner) or is_brought(guard.value))
            and (row := _row(guard)) is not None
        ]
        compare = _compare() if len(found) >= FEWEST else None
        if compare is None:
            return None
        of_rows, rows = zip(*_by_owner(found), strict=True)
        words = [word for row in rows for word in _words(*row)]
        table, n = (ctypes.c_ssize_t * len(words))(*words), len(rows)
        return GuardRows(rows, of_rows, lambda at: compare(table, at, n))

    def are_broken(self) -> bool:
        """Whether one of them does not hold."""
        at, n = self.first_that_differs(0), len(self.rows)
        while at < n:
            guard = self.of_rows[at]
            assert guard is not None
            if not guard.holds():
                return True
            at = self.first_that_differs(at + 1)
        return False

    def __repr__(self) -> str:
        return f"<{len(self.guards)} guards on Python state, compared in C>"


def _by_owner(rows: Iterable[tuple[Guard, _Row]]) -> Iterator[tuple[Guard | None, _Row]]:
    """The same with those of what a dict holds together, behind a row that says how many they are; dicts in the order
    in which they lie in memory."""
    of_dicts: dict[int, list[tuple[Guard, _Row]]] = {}
    for guard, row in rows:
        if _has_version_tags() and row[0] in (_ITEM, _EMPTY, _ENTRIES):
            of_dicts.setdefault(id(row[1]), []).append((guard, row))
        else:
            yield guard, row
    for _, own in sorted(of_dicts.items()):
        yield None, (_UNWRITTEN, own[0][1][1], len(own), MISSING)
        yield from own


def _row(guard: Guard) -> _Row | None:
    """How C compares a guard; None if it cannot."""
    kind, owner, key, how = guard.place.kind, guard.place.owner, guard.place.key, guard.how
    if kind == "itself":
        return _of_contents(owner, guard.value, how)
    if how == "absent":
        return (_ITEM, table, key, MISSING) if (table := _table(kind, owner, key)) is not None else None
    if how not in ("is", "equal"):
        return None
    if (table := _table(kind, owner, key)) is not None:
        return _ITEM, table, key, guard.value
    if kind == "cell":
        return _CELL, owner, None, guard.value
    if kind == "type":
        return _TYPE, owner, None, guard.value
    if kind == "slot" and key == "__dict__" and _keeps_attributes_as_objects_do(type(owner)):
        return _ATTRIBUTES, owner, None, guard.value
    if kind == "slot" and key == "__code__" and type(owner) is types.FunctionType:
        return _CODE, owner, None, guard.value
    return None


def _of_contents(owner: Any, was: Any, how: str) -> _Row | None:
    if how == "entries" and type(owner) in (dict, OrderedDict) and not was:
        return _EMPTY, owner, None, None
    if how == "entries" and isinstance(owner, dict):
        entries = tuple(part for entry in was.items() for part in entry)
        if isinstance(owner, OrderedDict):
            return _ORDERED, owner, OrderedDict.__iter__, entries
        return _ENTRIES, owner, None, entries
    if how == "set" and type(owner) is set and all(map(_is_one_of_its_kind, was)):
        return _MEMBERS, owner, None, tuple(was)
    return None


def _is_one_of_its_kind(value: Any) -> bool:
    """Whether nothing of another type is equal, and to find it in a table runs no code of the caller's."""
    if isinstance(value, type):
        return type(value).__eq__ is type.__eq__ and type(value).__hash__ is type.__hash__
    return type(value) is str or (type(value) is tuple and all(map(_is_one_of_its_kind, value)))


def _table(kind: str, owner: Any, key: Any) -> Any:
    """The dict in which a place lies; None if it lies in none, or a class of the caller's may say what that holds."""
    if kind == "class" and isinstance(owner, type):
        return gc.get_referents(owner.__dict__)[0]  # of a view
    is_found = type(key) is int or (type(key) is tuple and set(map(type, key)) <= _PLAIN) or _is_one_of_its_kind(key)
    return owner if kind == "item" and type(owner) in (dict, OrderedDict) and is_found else None


def _keeps_attributes_as_objects_do(kind: type) -> bool:
    found = next((base.__dict__["__dict__"] for base in kind.__mro__ if "__dict__" in base.__dict__), None)
    return isinstance(found, types.GetSetDescriptorType)


def _words(how: int, owner: Any, key: Any, value: Any) -> tuple[int, ...]:
    if how == _UNWRITTEN:
        return how, id(owner), key, 0
    return how, id(owner), id(key), 0 if value is MISSING else id(value)


@functools.cache
def _has_version_tags() -> bool:
    """Whether dicts have them: those of CPython did before 3.13 (PEP 699)."""
    is_like_that = sys.implementation.name == "cpython" and sys.version_info < (3, 13) and sys.maxsize > 1 << 32
    if not is_like_that or hasattr(sys, "gettotalrefcount"):  # a debug build has more words before it
        return False
    trial: dict[str, int] = {"a": 1}
    writes = [lambda: trial.update(a=2), lambda: trial.update(b=1), lambda: trial.pop("b"), trial.clear]
    tags = [_tag(trial)]
    for write in writes:
        write()
        tags.append(_tag(trial))
    return len({*tags}) == len(tags) and _tag(trial) == tags[-1]


def _tag(owner: dict[Any, Any]) -> int:
    return ctypes.c_size_t.from_address(id(owner) + _TAG * ctypes.sizeof(ctypes.c_size_t)).value


@functools.cache
def _compare() -> Any:
    """The function in C; None where nothing compiles it: what needs a compiler, as kernels do, says so."""
    if build.compiler() is None:
        return None
    try:
        library = build.load([_SOURCE])
    except BuildError:
        return None
    found = ctypes.PyDLL(library._name).first_that_differs  # it holds the lock of the interpreter
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t], ctypes.c_ssize_t
    return found
