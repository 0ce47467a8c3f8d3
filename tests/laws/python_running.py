"""Runs a Python program in eager PyTorch and compiled, and says what differs.

Two worlds are made of one source; one runs in eager PyTorch, in the other the function is compiled. After every step
they must look alike: results, exceptions, all objects, and the generators. What is refused by name must have changed
nothing.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import math
import os
import random
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch

import funcgrad as fg
from funcgrad.transforms.definition import Gradient

from . import python_kinds as kinds
from .python_snapshot import Snapshot, first_difference
from .python_source import OVER, Call, Program

# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Seen:
    """What one step of the script shows, or one of its calls."""

    step: int = 0
    error: str | None = None
    is_of_torch_func: bool = False
    """Whether torch.func raised that, for what it takes from no function: eager PyTorch says nothing of such a call."""
    refused: str | None = None
    crashed: str | None = None
    world: Any = None
    before: Any = None
    """The world before the step, where it was refused, or a program raised when it ran."""
    generators: Any = None
    printed: str = ""
    compiles: int = 0
    key: Any = None
    """What it called, and all that was there before it."""

    @property
    def is_undone(self) -> bool:
        """Whether a program raised when it ran, and Python state is as it was before the call: eager PyTorch goes on
        from another."""
        return bool(self.error) and self.before is not None and first_difference(self.before, self.world) is None


@attrs.define
class Run:
    """What the script shows, step by step, up to the first that is refused or crashes."""

    steps: list[Seen] = attrs.Factory(list)
    warnings: list[str] = attrs.Factory(list)
    setup: str | None = None


_INPUTS = """
A, B = torch.tensor([0.3, -0.7, 1.2]), torch.tensor([1.1, 0.4, -0.2])
C = torch.tensor([[0.3, -0.7, 1.2], [0.1, 0.2, 0.3]])
R = torch.tensor([0.3, -0.7, 1.2], requires_grad=True)
"""
_PRELUDE = compile(kinds.PRELUDE + _INPUTS, "prelude.py", "exec")
_FILE, _FUNCGRAD = "world.py", os.path.dirname(fg.__file__)
_OWN = re.compile(r"(world|const|fuzz_import_)\d*$").match
_MESSAGES = (
    ValueError,
    AssertionError,
    KeyError,
    NameError,
    AttributeError,
    NotImplementedError,
    RecursionError,
    SystemError,
)
"""What a program raises itself, and what it never should; the words of PyTorch's errors on stand-ins may be others."""


def backward(result: Any) -> None:
    """Backward through the tensors of a result."""
    if isinstance(result, torch.Tensor) and result.requires_grad:
        result.sum().backward()
    elif isinstance(result, (list, tuple)):
        for one in result:
            backward(one)
    elif isinstance(result, dict):
        backward(list(result.values()))


def backward_twice(result: Any, x: torch.Tensor) -> None:
    """The same through the gradient of ``x``."""
    if isinstance(result, torch.Tensor) and result.requires_grad:
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True, allow_unused=True)
        backward(None if gradient is None else gradient**2)


Transform = Callable[[Program, Callable[..., Any]], Any]


def run(program: Program, transform: Transform) -> Run:
    """Run a program's script, and write down what can be seen after every step."""
    made: list[tuple[Any, Callable[..., Any]]] = []
    module = types.ModuleType("world")
    space = module.__dict__
    before = dict(os.environ)
    found = Run()
    sys.modules["world"] = module
    filename, text = _FILE, program.text

    def transformed(f: Callable[..., Any]) -> Any:
        made.append((transform(program, f), f))
        return made[-1][0]

    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)

    def transformed_plainly(f: Callable[..., Any]) -> Any:
        made.append((transform(attrs.evolve(program, transform="jit"), f), f))
        return made[-1][0]

    with warnings.catch_warnings(record=True) as caught, torch.enable_grad():
        warnings.simplefilter("always")
        try:
            _seed()
            exec(_PRELUDE, space)
            known = set(space) - {"A", "B", "C", "R", "SHARED"}
            own = {
                "transform": transformed,
                "transform_plainly": transformed_plainly,
                "backward": backward,
                "backward_twice": backward_twice,
            }
            space |= own
            known |= set(own)
            try:
                exec(compile(text, filename, "exec"), space)
            except Exception as error:
                found.setup = f"{type(error).__name__}: {error}"
                return found
            _run_script(program, space, known, made, found, transform is not in_eager)
        finally:
            sys.modules.pop("world", None)
            for name in [n for n in sys.modules if n.startswith("fuzz_import_")]:
                del sys.modules[name]
            os.environ.clear()
            os.environ.update(before)
    found.warnings = [_warned_of(w) for w in caught if "funcgrad" in w.category.__module__]
    return found


def _run_script(
    program: Program,
    space: dict[str, Any],
    known: set[str],
    made: list[tuple[Any, Any]],
    found: Run,
    looks_before: bool,
) -> None:
    functions = [c.function if isinstance(c, Over) else c for c, _ in made]
    compiled = [c for c in functions if isinstance(c, fg.Compiled)]
    stand_for = {id(c): f for c, f in made}

    def look(without: frozenset[str] = frozenset()) -> Snapshot:
        return _snapshot(Snapshot(_is_own, stand_for), space, known | without)

    times = [step.times if isinstance(step, Call) else 1 for step in program.steps]
    steps = [(i, source) for i, source in enumerate(program.script) for _ in range(times[i])]
    for i, source in steps:
        seen = Seen(i)
        space.pop("result", None)
        misses = sum(c.cache_info().misses for c in compiled)
        before = look() if "call(" in source and looks_before else None
        if before is not None and compiled:
            mentioned = look(frozenset(program.bystanders)) if program.bystanders else before
            reads = any(part.kind.reads_values for part in program.parts)
            lines = [
                (repr(what.tolist()) if reads else "") if isinstance(what, torch.Tensor) else what
                for _, what in mentioned.lines
            ]
            seen.key = (
                source,
                torch.is_grad_enabled(),
                mentioned.ids,
                lines,
                torch.get_rng_state().tolist() if reads else None,
            )
        own = io.StringIO()
        try:
            with contextlib.redirect_stdout(own):
                exec(source, space)
        except fg.FuncgradError as error:
            if isinstance(error, fg.GraphError):  # a defect by its own word
                seen.crashed = f"{type(error).__name__}: {error}"
            # a forward pass has run before: that of a call in a transform, or of what is differentiated after it
            later = program.transform in OVER or "\nbackward" in source
            seen.refused, seen.before = reason_of(error), None if later else before
        except Exception as error:
            seen.before = before if compiled and _is_of_program(error) else None
            seen.error = f"{type(error).__name__}: {error}" if isinstance(error, _MESSAGES) else type(error).__name__
            seen.is_of_torch_func = any(words in str(error) for words in _REFUSED_BY_TORCH_FUNC)
        seen.world, seen.generators = look(), _generators()
        seen.printed = "" if program.transform in OVER else own.getvalue()  # wrappers of a level are printed as such
        seen.compiles = sum(c.cache_info().misses for c in compiled) - misses
        found.steps.append(seen)
        if seen.refused or seen.crashed:
            return


_REFUSED_BY_TORCH_FUNC = ("must override the setup_context staticmethod", "that would mutate a captured Tensor")


def _is_of_program(error: BaseException) -> bool:
    """Whether a compiled program raised it when it ran, and not the function, while it was traced or in eager
    PyTorch."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [*itertools.dropwhile(lambda file: not file.startswith(_FUNCGRAD), files)]
    return bool(inside) and _FILE not in inside


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def _generators() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (numpy[1].tobytes(), *numpy[2:])


def _is_own(module: str | None) -> bool:
    return module is not None and _OWN(module) is not None


def _snapshot(snapshot: Snapshot, space: dict[str, Any], known: set[str]) -> Snapshot:
    for name in sorted(space.keys() - known):
        if name not in (
            "__builtins__",
            "__name__",
            "__doc__",
            "__package__",
            "__loader__",
            "__spec__",
            "__warningregistry__",
        ):
            snapshot.see(name, space[name])
    for name in sorted(os.environ):
        if name.startswith("FUZZ_"):
            snapshot.see(f"os.environ[{name!r}]", os.environ[name])
    return snapshot


ORDERS = {"grad": ("grads",), "value_and_grad": ("value", "grads")}
MAKES = {
    "grad": fg.grad_compiled,
    "value_and_grad": fg.value_and_grad_compiled,
    "curved gradient": fg.grad_compiled,
}


@attrs.frozen(eq=False)
class Over:
    """A transform of torch.func over a function, compiled or not."""

    transform: str
    function: Callable[..., Any]

    def __call__(self, x: torch.Tensor, *more: Any, **named: Any) -> Any:
        def f(x: torch.Tensor) -> Any:
            return self.function(x, *more, **named)

        if self.transform == "mapped":
            return torch.func.vmap(f)(torch.stack([x, x * 2]))
        if self.transform == "pushed":
            return torch.func.jvp(f, (x,), (torch.ones_like(x),))
        if self.transform == "differentiated":
            return torch.func.grad(f)(x)
        gradient = f if self.transform == "curved gradient" else torch.func.grad(f)
        return torch.func.grad(lambda x: gradient(x).sum())(x)


def in_eager(program: Program, f: Callable[..., Any]) -> Any:
    """What a program's transform means, in eager PyTorch."""
    if program.transform in OVER:
        return Over(program.transform, torch.func.grad(f) if program.transform in MAKES else f)
    return f if program.transform == "jit" else Gradient(f, 0, False, ORDERS[program.transform])


def compile_it(program: Program, f: Callable[..., Any]) -> Any:
    """The transform itself."""
    compiled = MAKES.get(program.transform, fg.jit)(f, backend=program.backend)
    return Over(program.transform, compiled) if program.transform in OVER else compiled


def reason_of(error: fg.FuncgradError) -> str:
    """The class of a refusal and its first words, without names."""
    return f"{type(error).__name__}: {_first_words(error.what)}"


def _warned_of(warning: warnings.WarningMessage) -> str:
    """The class of a warning; of what no guard can watch, its first words, too."""
    name = warning.category.__name__
    return f"{name}: {_first_words(str(warning.message))}" if name == UNWATCHED else name


def _first_words(text: str) -> str:
    words = [re.sub(r"\S*[\d._'\"`(\[:]\S*", "…", w) for w in text.split()]
    return " ".join(words[:5])


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Outcome:
    """How a program went: ``agrees``, ``refused``, ``warned`` (differs, but was warned about), ``differs``,
    ``crashed``."""

    status: str
    reason: str = ""
    detail: str = ""
    step: int = 0
    compiles: int = 0
    """How often its calls compiled."""
    worlds: int = 0
    """How many different ones its calls found: what it mentions of them, and its arguments."""
    again: int | None = None
    """The first step that compiled in a world in which an equal call had run."""
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """What the compiled program raised, in words."""
        return self.detail.rpartition("compiled: ")[2].partition(": ")[2]

    @property
    def sort(self) -> tuple[str, str]:
        """What stays the same while a program is minimised."""
        return (
            ("agrees", "compiles again")
            if self.status == "agrees" and self.again is not None
            else (self.status, self.reason)
        )

    @property
    def last(self) -> int:
        """The step that says so."""
        return self.step if self.again is None or self.status != "agrees" else self.again


UNWATCHED = "UnwatchedStateWarning"


def check(program: Program, transform: Transform = compile_it) -> Outcome:
    """Run a program both ways and compare; where fused kernels are run, what differs in double precision, too."""
    outcome = _check_once(program, transform)
    if outcome.status != "differs" or program.backend == "aten":
        return outcome
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        precise = _check_once(program, transform)
    finally:
        torch.set_default_dtype(before)
    return outcome if precise.sort == outcome.sort else precise


def _check_once(program: Program, transform: Transform) -> Outcome:
    eager, compiled = run(program, in_eager), run(program, transform)
    if compiled.setup is not None or eager.setup is not None:
        return Outcome("agrees") if compiled.setup == eager.setup else Outcome("crashed", "setup", str(compiled.setup))
    outcome = _compare(eager, compiled, program)
    raises = outcome.reason.startswith("raises") and outcome.message and outcome.message in program.text
    if (outcome.status == "differs" or raises) and any(w.startswith(UNWATCHED) for w in compiled.warnings):
        # else what comes of the value: a result, a state, an exception or none
        late = outcome.reason == "state after an exception"
        outcome = attrs.evolve(outcome, status="warned", reason=outcome.reason if late else "result")
    seen: list[Any] = []
    again = None
    for step in compiled.steps:
        if step.key is not None:
            again = step.step if again is None and step.compiles and step.key in seen else again
            seen += [] if step.key in seen or step.error else [step.key]
    compiles = sum(step.compiles for step in compiled.steps if step.key is not None and not step.error)
    return attrs.evolve(
        outcome, compiles=compiles, worlds=len(seen), again=again, warnings=tuple(sorted(set(compiled.warnings)))
    )


def _compare(eager: Run, compiled: Run, program: Program) -> Outcome:
    """Up to the step after which the two worlds may differ: where a program has raised, a gradient has stored a
    tensor, without the history that eager PyTorch gives it, or a transform of torch.func one of its level, or
    where that has raised, for what it takes from no function, or where compiled code goes on."""
    histories = program.transform == "jit"
    for a, b in zip(eager.steps, compiled.steps, strict=False):
        runs = not (b.refused or b.crashed or b.error)
        if program.transform in OVER and (a.is_of_torch_func or (runs and (a.world.wraps or a.error))):
            break
        outcome = _compare_step(a, b, program.text, histories)
        if outcome is not None:
            return attrs.evolve(outcome, step=b.step)
        if (b.is_undone or not histories) and first_difference(a.world, b.world):
            break
    return Outcome("agrees")


_OF_TORCH = ("RuntimeError", "IndexError", "TypeError", "AssertionError")
"""Errors PyTorch raises for what it cannot compute; on stand-ins it may raise another one of them."""


def _is_of_torch(error: str, text: str) -> bool:
    """Whether an error is one of PyTorch's: a ``ValueError`` is, where its words are none of the program's."""
    kind, _, words = error.partition(": ")
    return kind in _OF_TORCH or (kind == "ValueError" and words not in text)


def _compare_step(a: Seen, b: Seen, text: str, histories: bool) -> Outcome | None:
    if b.crashed:
        return Outcome("crashed", b.crashed.split(":")[0], b.crashed)
    if b.refused:
        changed = first_difference(b.before, b.world, ("before", "after")) if b.before is not None else None
        if changed and not a.error:
            return Outcome("differs", "changed by a refused call", f"{b.refused}\n  {changed[1]}")
        return Outcome("refused", b.refused)
    if a.error != b.error:
        what = f"eager: {a.error or 'runs'}\n  compiled: {b.error or 'runs'}"
        if a.error is None:
            return Outcome("crashed", f"raises {(b.error or '').split(':')[0]}", what)
        if b.error is None:
            return Outcome("differs", "does not raise", what)
        if not (_is_of_torch(a.error, text) and _is_of_torch(b.error, text)):
            return Outcome("differs", "other exception", what)
    found = first_difference(a.world, b.world, histories=histories)
    if found and not b.is_undone:
        path, what = found
        if not path.startswith("result"):
            return Outcome("differs", "state after an exception" if a.error else "state", what)
        return Outcome("differs", "identity of a result" if "the same as" in what else "result", what)
    if a.generators != b.generators:
        which = [n for n, p, q in zip(("torch", "random", "numpy"), a.generators, b.generators, strict=True) if p != q]
        reason = "state after an exception" if a.error else f"generator of {which[0]}"
        return Outcome("differs", reason, f"the generator of {which[0]} is elsewhere")
    if not (a.error or _are_alike(a.printed, b.printed)):
        return Outcome("differs", "output", f"eager: {a.printed!r}\n  compiled: {b.printed!r}")
    return None


_NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]\d+)?")


def _are_alike(a: str, b: str) -> bool:
    """Whether two texts are the same, but for what rounding makes of the numbers in them."""
    numbers, others = [float(n) for n in _NUMBER.findall(a)], [float(n) for n in _NUMBER.findall(b)]
    without = [re.sub(r"\s+", " ", _NUMBER.sub("n", text)) for text in (a, b)]
    return without[0] == without[1] and all(
        math.isclose(x, y, rel_tol=1e-3, abs_tol=0.11) for x, y in zip(numbers, others, strict=True)
    )
