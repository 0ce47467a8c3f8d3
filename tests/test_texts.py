"""Texts of tensors and numbers: printed, logged, and read."""

import contextlib
import io
import logging
import re
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcgrad as fg

LOGGER = logging.getLogger("texts")
WEIGHT = torch.ones(2, requires_grad=True)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        print("gradient", gradient)
        return gradient * 2


class Shows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 4.0))

    def forward(self, x):
        y = (x * self.weight).relu()
        print("before", y, self.weight)
        y = y * 3
        y.mul_(2)
        print("after", [y], {"shape": y.shape})
        return y


class Counts:
    def __init__(self):
        self.log, self.steps = LOGGER, 0

    def __call__(self, x):
        self.steps += 1
        print(f"step {self.steps:03d}: {x.sum():.2f}", end="|", flush=True)
        self.log.warning(f"step {self.steps}")
        return x * 2


class Padded:
    """Whose text is measured where it is made."""

    def __init__(self, value):
        self.value = value

    def __str__(self):
        return f"{self.value:.2f}".rjust(9) + str(len(f"{self.value:.1f}"))


def reads(what):
    """A function that prints a number which it reads of its argument."""

    def f(x):
        value = x.sum().item()
        what(value)
        return x * 2

    return f


def caught(x):
    try:
        print(f"{x.sum().item():.2f} {1 / 0}")
    except ZeroDivisionError:
        print(f"again {x.sum():.2f}")
    return x * 2


def in_variables(x):
    message = f"sum {x.sum().item():.2f}"
    for value in x:
        message = f"{message} {value.item():.1f}"
        print("so far", message)
    LOGGER.warning(message)
    return x * 2


def kept_in_a_variable(x):
    message = f"sum {x.sum().item():.2f}"
    print(message)
    return x * 2, message


def seen_in_a_closure(x):
    message = f"sum {x.sum().item():.2f}"
    print(message, (lambda: len(message))())
    return x * 2


def redirected(x):
    with contextlib.redirect_stdout(io.StringIO()) as own:
        print(x)
    sys.stdout.write(own.getvalue())
    return x * 2


def warned(x):
    warnings.warn(f"seen {x}", stacklevel=1)
    return x * 2


PRINTED = {
    "an argument": lambda x: (print("x", x), x * 2)[1],
    "several": lambda x: (print(*[x, x + 1], sep="|"), x * 2)[1],
    "in containers": lambda x: (print([x, {"a": (x * 2,)}]), x * 2)[1],
    "in a result of torch": lambda x: (print(torch.max(x, 0)), x * 2)[1],
    "a leaf and what is computed": lambda x: (print(WEIGHT, WEIGHT * 2, WEIGHT.expand(2, 2)), x * 2)[1],
    "a parameter": lambda x: (print(nn.Parameter(torch.ones(2))), x * 2)[1],
    "kinds": lambda x: (print(x[:0], x.long(), x.double(), x > 1, x[None, :0], x * 1j, x.bfloat16()), x * 2)[1],
    "many": lambda x: (print(x.expand(1001, 3) * 2), x * 2)[1],
    "logged": lambda x: (LOGGER.warning("x %s and %r, %d", x, x * 2, 3), x * 2)[1],
    "in a backward pass": lambda x: Doubled.apply(x),
    "a module": Shows(),
    "formatted": lambda x: (print(f"x is {x}, {x[0]}, {x.sum():>9.2f}", 1), x * 2)[1],
    "formatted by a method": lambda x: (print("{:.1f} {!r} {a}".format(x[0], x, a=x[1]), sep=""), x * 2)[1],  # noqa: UP032
    "converted": lambda x: (print(str(x), repr(x[0]), format(x[1], ".1f")), x * 2)[1],
    "a parameter of no dimensions": lambda x: (print(f"{nn.Parameter(x.sum())}"), x * 2)[1],
    "a message": lambda x: (LOGGER.warning(x), LOGGER.warning(f"{x} {x[0]:.1f}"), x * 2)[2],
}
NUMBERS = {
    "a number": reads(lambda v: print(v)),
    "a number in containers": reads(lambda v: print([v], {"a": (v,)}, -v, v + 1)),
    "a number, formatted": reads(lambda v: print(f"v {v:+.3e} {v!r} {v}", "{:.1%}".format(v))),  # noqa: UP032
    "a number, logged": reads(lambda v: LOGGER.warning("v %-8.3f|%s|%d", v, v, v)),
    "a number, a message": reads(lambda v: (LOGGER.warning(v), LOGGER.warning(f"v {v:.1f}"))),
    "items for conversions": lambda x: (LOGGER.warning("%5.2f %d%% %s", *x.detach()), x * 2)[1],
    "before an error": caught,
    "in variables": in_variables,
}
"""A number is a symbol from its second value on."""
READ = {
    "repr": lambda x: (print("x is " + repr(x)), x * 2)[1],
    "formatted before": lambda x: (print(" ".join([f"x is {x}, {x[0]}, {x.sum():.2f}"])), x * 2)[1],
    "formatted twice": reads(lambda v: print(f"{v!s:>8}|{f'{v:.2f}':>8}|{v!a}", "{!r:>8}".format(v))),  # noqa: UP032
    "measured in a text of its own": reads(lambda v: LOGGER.warning("%s", Padded(v))),
    "printed by a text of its own": reads(lambda v: print(Padded(v), [Padded(v)][0])),
    "measured": reads(lambda v: print(len(f"{v:.1f}"))),
    "one of two": reads(lambda v: print(f"{v:.1f}" if v else "none")),
    "of each": lambda x: (print(", ".join(str(v) for v in x)), x * 2)[1],
    "kept in a variable": kept_in_a_variable,
    "seen in a closure": seen_in_a_closure,
    "decides": lambda x: x * 2 if "1." in str(x) else x * 3,
    "returned": lambda x: (x * 2, f"{x * 2}"),
    "to another stream": redirected,
    "logged with a width": lambda x: (LOGGER.warning("x %40s", x), x * 2)[1],
    "warned": warned,
}


def seen(f, mode, requires_grad, capsys, caplog):
    found = []
    for n in range(3):
        x = (torch.arange(3.0) + n).requires_grad_(requires_grad)
        with mode(), warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", UserWarning)
            out = f(x)
        y = out[0] if isinstance(out, tuple) else out
        if y.requires_grad:
            y.sum().backward()
        found.append((y.tolist(), x.grad, capsys.readouterr().out, [str(w.message) for w in given], caplog.messages[:]))
        found.append(out[1:] if isinstance(out, tuple) else None)
        caplog.clear()
    return found


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", PRINTED | NUMBERS | READ)
def test_texts_are_those_of_the_call(name, requires_grad, mode, capsys, caplog):
    """They were of what stands for the tensor in a trace."""
    f = (PRINTED | NUMBERS | READ)[name]
    compiled = fg.jit(f, backend="aten")
    expected = seen(f, mode, requires_grad, capsys, caplog)
    assert repr(seen(compiled, mode, requires_grad, capsys, caplog)) == repr(expected)
    if name in PRINTED and name != "in a backward pass":
        assert compiled.cache_info().misses == 1
    if name in NUMBERS:
        assert compiled.cache_info().misses == 2


def test_numbers_of_the_call_and_of_python_are_printed(capsys, caplog):
    """Each value was a program."""

    def f(x, epoch, rate):
        print(f"epoch {epoch}, rate {rate:.1e}")
        return counts(x)

    def run(called):
        counts.steps = 0
        for i in range(8):
            called(torch.full((2,), float(i)), i, i / 10)
        messages = caplog.messages[:]
        caplog.clear()
        return capsys.readouterr().out, messages, counts.steps

    counts = Counts()
    expected, compiled = run(f), fg.jit(f, backend="aten")
    assert run(compiled) == expected
    assert compiled.cache_info().misses <= 4


LOOKS = {
    "in a record": lambda x: logging.warning("shape %s of %s", x.shape, x.size(0)),
    "in a record, as a number": lambda x: logging.warning("%d rows", len(x)),
    "printed": lambda x: print(x.shape, f"{x.shape[0]:>5}"),
    "in a warning": lambda x: warnings.warn(f"{x.shape}", stacklevel=1),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_sizes_are_those_of_the_call(look, capsys, caplog):
    """A record said the size of the second call ever after."""

    def run(called):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in (3, 4, 5, 6):
                called(torch.ones(n, 2))
        messages = [record.getMessage() for record in caplog.records if record.name == "root"]
        caplog.clear()
        own = [str(w.message) for w in caught if w.category is UserWarning]
        return capsys.readouterr().out, messages, own

    f = lambda x: (look(x), x * 2)[1]  # noqa: E731
    expected = run(f)
    assert run(fg.jit(f, backend="aten")) == expected


@pytest.mark.parametrize("value", [nn.Parameter(torch.ones(())), torch.ones(2)])
def test_what_has_no_such_format_raises_as_in_eager(value):
    """It was formatted, or raised an error of reads."""
    f = lambda x: (print(f"{value:.2f}"), x * value)[1]  # noqa: E731
    with pytest.raises(TypeError) as expected:
        f(torch.ones(2))
    with pytest.raises(TypeError, match=re.escape(str(expected.value))):
        fg.jit(f, backend="aten")(torch.ones(2))


class Hooked(nn.Module):
    def __init__(self, register):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        getattr(self.layer, register)(lambda module, given, back: None)

    def forward(self, x):
        return self.layer(x)


WARNING = {
    "a hook without gradients of inputs": lambda: Hooked("register_full_backward_hook"),
    "a hook of several nodes": lambda: Hooked("register_backward_hook"),
    "losses": lambda: lambda x: F.mse_loss(x, WEIGHT[:1]) + nn.L1Loss()(x, WEIGHT[:1]) + nn.Softmax()(x).sum(),
}


@pytest.mark.parametrize("what", WARNING)
def test_torch_warns_of_modules_and_losses_in_each_call(what):
    """It did so in the first call alone, and three times."""
    f = WARNING[what]()

    def given(called):
        found = []
        for _ in range(3):
            with warnings.catch_warnings(record=True) as own:
                warnings.simplefilter("always")
                called(torch.arange(3.0)).sum().backward()
            found.append([(w.category, str(w.message)) for w in own])
        return found

    expected = given(f)
    assert expected[0]
    assert given(fg.jit(f, backend="aten")) == expected


def test_a_text_that_nobody_knows_is_named():
    f = torch.vmap(lambda x: x * len(str(x)))
    with pytest.warns(fg.UnwatchedStateWarning, match=r"asks for the text of a tensor \(test_texts\.py:\d+"):
        fg.jit(f, backend="aten")(torch.ones(2, 2))


def test_what_is_printed_is_shown():
    program = fg.jit(lambda x: (print("x", x), x * 2)[1], backend="aten").program(torch.ones(3))
    assert "print 'x f32[3]" in str(program.facts.state)
    compiled = fg.jit(NUMBERS["a number, formatted"], backend="aten")
    for i in range(2):
        compiled(torch.ones(3) * i)
    assert "print 'v float float float float" in str(compiled.program(torch.ones(3)).facts.state)
