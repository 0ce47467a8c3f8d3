"""What a program reads, writes and takes for granted, and what would compile its function again: for one who has not
read the key."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import frozen

from ..graph_primitives import Opaque, has_symbols
from ..graphs import where_of
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..show.text import elided
from ..state.said import is_read, shown
from .donation import UNUSED, taken_in
from .key import DynamicSpec, StaticSpec
from .program import Program

_AGAIN = {
    StaticSpec: "another value: another program",
    DynamicSpec: "none: it is a symbol",
}
_OF_A_TENSOR = "another dtype, device or requires_grad; another size: at first once, then a symbol"


@frozen(eq=False, repr=False)
class Explanation(Shown):
    """See the module's docstring."""

    program: Program

    def headline(self) -> str:
        parts = ((self._reads, "read"), (self._writes, "written"), (self._assumes, "assumed"))
        return f"{self.program.name}: {', '.join(f'{len(list(rows()))} {what}' for rows, what in parts)}"

    def doc(self) -> Doc:
        tables = (
            Table(("what", "is", "read at", "compiles again"), tuple(self._reads()), "reads"),
            Table(("what", "by"), tuple(self._writes()), "writes"),
            Table(("what", "is"), tuple(self._assumes()), "assumes"),
        )
        shown = [table for table in tables if table.rows]
        summary = Table(("", ""), tuple((t.title, ", ".join(dict.fromkeys(row[0] for row in t.rows))) for t in shown))
        return Doc(self.headline(), (summary, *(Doc(table.title, (table,)) for table in shown)))

    def _named(self, text: str) -> str:
        """With what symbols are sizes of in their place."""
        return text if (sizes := self.program.joint.sizes) is None else sizes.named(text)

    def _reads(self) -> Iterator[tuple[str, ...]]:
        key, facts = self.program.key, self.program.facts
        lines = facts.state.lines
        for path, spec in zip(key.paths, key.leaves, strict=True):
            is_any = isinstance(spec, DynamicSpec) and not spec.is_number
            again = "another type" if is_any else _AGAIN.get(type(spec), _OF_A_TENSOR)
            yield path, self._named(str(spec)), "", again
        for name, spec in key.captured:
            at = lines.of(name.partition("#")[0])
            yield name, self._named(f"{spec}, captured"), at, "another dtype, device, size or requires_grad"
        for slot, place in facts.numbers:
            yield str(place), f"any {slot.kind.__name__}", lines.of(place.name), "none: it is a symbol"
        for guard in facts.state.guards:
            if facts.state.brought.leads(guard):
                yield str(guard.place), f"any {type(guard.value).__name__}", lines.of(guard.place.name), "another type"
            elif is_read(guard):
                yield str(guard.place), shown(guard), lines.of(guard.place.name), "another one"
        for read in self.program.joint.reads:
            again = "what it decides otherwise" if has_symbols(read.value) else "another one: another path"
            yield "a value", elided(repr(read.value), 40), read.where or "in backward", again

    def _writes(self) -> Iterator[tuple[str, ...]]:
        for layer in self.program.layers:
            for effect in layer.effects:
                yield str(effect), f"layer {layer.name}"
        taken = taken_in(self.program.schedule[0].steps) if self.program.joint.donated else ()
        nodes = dict(self.program.joint.graph.given)
        for slot, why in self.program.joint.donated.items():
            is_taken = not why and slot in nodes and nodes[slot].name in taken
            yield str(slot), "donated: results lie there" if is_taken else f"nothing: donated, but {why or UNUSED}"
        for change in self.program.facts.state.effects:
            yield str(change), "Python state"
        for node in self.program.joint.graph.fx.nodes:
            if isinstance(node.target, Opaque) and not node.target.is_pure:
                yield f"what {node.target.name} does", f"an opaque call, {where_of(node) or 'in backward'}"

    def _assumes(self) -> Iterator[tuple[str, ...]]:
        ambient = self.program.key.ambient
        yield "grad mode", "on" if ambient.grad_mode else "off"
        yield "autocast", ", ".join(map(str, ambient.autocast)) or "off"
        yield "default dtype", str(ambient.default_dtype).removeprefix("torch.")
        for name, history in self.program.key.histories:
            yield name, history
        for name, question, answer in self.program.key.asked:
            yield question.format(name), str(answer)
        names = self.program.joint.symbols
        for guard in self.program.joint.conditions:
            named = re.sub(r"\b[a-z]+_?\d+\b", lambda symbol: names.get(symbol[0], symbol[0]), guard)
            yield self._named(named), "holds"
