"""Tags: what the partition may do with a node. ``tag()`` is the only writer and rejects contradictions.

A node carries one frozen ``Tags(flags, why)``; the reasons are what the partition page and the errors show. What
checkpoint policies say of a node while it is recorded is kept beside them (``Said``), until the whole graph is known.
"""

from __future__ import annotations

import enum

from attrs import frozen
from torch.fx import Node

from .errors import PartitionError

_KEY, _SAID = "tags", "said"


class Tag(enum.Flag):
    """What must hold for a node when the joint graph is split."""

    NONE = 0
    MUST_SAVE = enum.auto()
    """If backward needs it, it is saved: it is never computed a second time."""
    PREFER_RECOMPUTE = enum.auto()
    """Computing it again costs nothing; it is saved only where that keeps fewer bytes than what it is computed from."""
    MUST_RECOMPUTE = enum.auto()
    """If backward needs it, it is computed again: it is never saved."""
    MUST_BE_IN_FORWARD = enum.auto()
    MUST_BE_IN_BACKWARD = enum.auto()


_CONTRADICTIONS = (
    (Tag.MUST_BE_IN_FORWARD, Tag.MUST_BE_IN_BACKWARD),
    (Tag.MUST_SAVE, Tag.PREFER_RECOMPUTE),
    (Tag.MUST_SAVE, Tag.MUST_RECOMPUTE),
    (Tag.MUST_SAVE, Tag.MUST_BE_IN_BACKWARD),
)


@frozen
class Tags:
    """The flags of one node with the reason for each."""

    flags: Tag = Tag.NONE
    why: tuple[tuple[Tag, str], ...] = ()

    def reason(self, flag: Tag) -> str:
        return "; ".join(text for f, text in self.why if f & flag)

    def __str__(self) -> str:
        return ", ".join(f"{f.name}: {text}" for f, text in self.why)


_UNTAGGED = Tags()


def tags_of(node: Node) -> Tags:
    """The tags of a node; an untagged node has none."""
    tags: Tags = node.meta.get(_KEY, _UNTAGGED)
    return tags


def tag(node: Node, flag: Tag, why: str) -> None:
    """Add ``flag`` to ``node`` with its reason. Raises ``PartitionError`` naming both reasons if it contradicts one
    there."""
    old = tags_of(node)
    if flag in old.flags:
        return
    flags = old.flags | flag
    for a, b in _CONTRADICTIONS:
        if a in flags and b in flags:
            new = Tags(flags, (*old.why, (flag, why)))
            raise PartitionError(
                f"{node.name} cannot be both {a.name} ({new.reason(a)}) and {b.name} ({new.reason(b)})",
                where=node.meta.get("where"),
                fix="remove one of the two reasons",
            )
    node.meta[_KEY] = Tags(flags, (*old.why, (flag, why)))


@frozen
class Said:
    """What the policy of one checkpoint region says of a node: a flag (or NONE) and the reason. Each region has a
    number and a name."""

    region: int
    name: str
    flag: Tag
    why: str


def said_of(node: Node) -> tuple[Said, ...]:
    """What the regions around a node say of it, the outermost first."""
    found: tuple[Said, ...] = node.meta.get(_SAID, ())
    return found


def say(node: Node, said: tuple[Said, ...]) -> None:
    """Note what the regions around a node say of it."""
    node.meta[_SAID] = said
