"""What else a trace refuses: values and sizes nobody knows, kinds of tensors, draws, transforms, runs that disagree."""

from __future__ import annotations

from attrs import evolve

from ..errors import (
    ArchiveError,
    CapturedTransformError,
    DataDependentControlFlowError,
    DataDependentShapeError,
    ImpureFunctionError,
    Refusal,
    ResultError,
    TraceError,
    UnsupportedOperatorError,
    UnsupportedTensorError,
    UnsupportedTransformError,
)

SUBCLASS_IN_CONTROL_FLOW = Refusal(
    UnsupportedTensorError,
    "torch.cond takes no tensor subclass, and no loop does: this is a {0}",
    "choose between values with torch.where, or pass the inner tensors",
)
OPAQUE_UNKNOWN = Refusal(
    DataDependentShapeError,
    "nothing says how the result of {0} looks for arguments of such sizes and dtypes, which it has not been given yet",
    "fg.opaque({0}, like=...), with a pytree like its result or a function of the arguments that makes one; or call it "
    "once outside of the transform",
    is_first=True,
)
OPAQUE_WITHOUT_DERIVATIVE = Refusal(
    UnsupportedTransformError,
    "{0} is Python that no trace sees, it is differentiated in {1} mode, and nothing says what its derivative is",
    "{2}, with def rule(args, out, {3}) that returns {4}; or pass x.detach()",
)
OPAQUE_WRITES_WITHOUT_DERIVATIVE = evolve(
    OPAQUE_WITHOUT_DERIVATIVE,
    fix="call it under torch.no_grad(), or in a function with rules of its own: fg.custom_{2}",
)
OPAQUE_OF_SUBCLASS = Refusal(
    UnsupportedTensorError,
    "an opaque call takes no tensor subclass: this is a {0}",
    "pass its inner tensors",
)
OPAQUE_WITHOUT_BATCH = Refusal(
    UnsupportedTransformError,
    "{0} is Python that no trace sees, and nothing says how it is called for a batch (vmap)",
    '{1} calls it for each sample; "expand_dims" and "broadcast_all" once, with a batch dimension in front',
)
NOT_DENSE = Refusal(UnsupportedTensorError, "a {0} cannot be traced", "pass dense floating-point tensors: x.{1}()")
SYMBOLIC_ZEROS = Refusal(
    UnsupportedTensorError,
    "a tensor of symbolic zeros, with no memory behind it, cannot be an input",
    "pass zeros: torch.zeros_like(x)",
)
MAKES_SPARSE = Refusal(UnsupportedTensorError, "the function makes {0} ({1}), which is not compiled", "{2}")
FLATTENS_WRONGLY = Refusal(
    UnsupportedTensorError,
    "what {0}.__tensor_flatten__() returns {1}",
    "return the attributes that hold tensors, and metadata that compares with ==",
)
SUBCLASS_WITHOUT_FLATTEN = Refusal(
    UnsupportedTensorError,
    "a tensor subclass {0} cannot be traced: it is no wrapper (it has no __tensor_flatten__)",
    "pass plain tensors: x.as_subclass(torch.Tensor)",
)
LAZY_MODULE = Refusal(
    UnsupportedTensorError,
    "a {0} of a lazy module cannot be traced: its first call says what it is",
    "call the module once before",
)
INITIALISES_LAZY_MODULE = evolve(LAZY_MODULE, is_first=True)
MAKES_LAYOUT = Refusal(
    UnsupportedTensorError,
    "{0} makes a tensor with layout {1}, which is not compiled",
    "ask for a dense one (sparse=False), or do it outside of the function",
)
GRADIENT_INTO_INNER = Refusal(
    UnsupportedTensorError,
    "a gradient would flow from the result{0} into an inner tensor of a subclass, which requires grad itself",
    "compute with the subclass, or pass its inner tensors as arguments",
)
BODY_RETURNS_NO_TENSOR = Refusal(
    TraceError,
    "{0} returns {1!r}, which is no tensor",
    "return tensors: torch.tensor(n), torch.full_like(x, n)",
)
CONDITION_IS_CONSTANT = Refusal(
    DataDependentControlFlowError,
    "the condition of while_loop returns {0!r}, which is the same after each step",
    "compute it of the carried tensors: lambda i, x: i < n, with i = torch.tensor(0)",
)
LOOP_RETURNS_NO_TENSOR = Refusal(
    TraceError,
    "the body of a while_loop returns what is no tensor",
    "return tensors: torch.tensor(n)",
)
NO_TENSOR = Refusal(TraceError, "{0} is {1!r}, which is no tensor", "pass a tensor: {2}")
BRANCHES_DISAGREE = Refusal(
    TraceError,
    "one branch of torch.cond returns {0}, where the other returns {1}",
    "return tensors from both: torch.tensor(n)",
)
WHILE_IN_REVERSE = Refusal(
    UnsupportedTransformError,
    "a while_loop is differentiated in reverse mode, which would have to keep something of every step",
    "write torch._higher_order_ops.scan over as many steps as there may be, with torch.where(goes_on, new, old) "
    "in its body; differentiate in forward mode (fg.jvp_compiled); or compute it under torch.no_grad()",
)
CARRY_CHANGES = Refusal(
    TraceError,
    "the body of {0} was given a carry of types {1} and returns {2}",
    "return a carry of the sizes and dtypes of the first one: start from zeros of these, or cast with .to()",
)
BODY_CALLS_ONCE = Refusal(
    UnsupportedTransformError,
    "{0} calls {1}, which runs once, and is differentiated: its backward pass would call it again",
    "call it outside, or make it a fg.pure_callback, which may run again",
)
BRANCH_TYPES = Refusal(
    TraceError,
    "the branches of torch.cond return different types: {0} and {1}",
    "return tensors of the same sizes and dtypes from both",
)
CONDITION_TYPE = Refusal(TraceError, "the condition of while_loop returns {0}", "return one bool, as a tensor: .any()")
NOT_AN_OPERAND = Refusal(
    UnsupportedTensorError,
    "a branch of torch.cond, or the body of a loop, uses a tensor that is not one of its operands, in a call that is "
    "not traced",
    "name it among the operands: torch.cond(condition, f, g, (x, w))",
)
EFFECT_BY_TOKEN = Refusal(
    UnsupportedOperatorError,
    "the function calls {0}, whose effect PyTorch orders by tokens: a collective of torch.distributed, say",
    "call it in order, as an opaque function: fg.opaque(lambda t: (dist.all_reduce(t), t)[1], like=lambda t: t)(x)",
)
NOT_COMPILED = Refusal(
    UnsupportedOperatorError,
    "{0}, which is not compiled yet",
    "write {1}, or call it outside of the function",
)
ASKED_FOR_VALUE = Refusal(
    DataDependentControlFlowError,
    "the function asked for the value of a tensor (.item(), float(t), if t:, while t:), which is not known while it "
    "is traced",
    "write `torch.where(condition, a, b)` for a choice between values, `torch.cond(condition, f, g, (x,))` for a "
    'choice between computations, or pass the value as a Python argument; or leave out reads="error"',
)
VALUE_KNOWN_LATER = evolve(
    ASKED_FOR_VALUE,
    fix="write `torch.where(condition, a, b)` for a choice between values, `torch.cond(condition, f, g, (x,))` for a "
    "choice between computations, or read the value before, of a tensor that the call is given",
)
VALUE_OF_CALLBACK = Refusal(
    DataDependentControlFlowError,
    "the function asks for a value that {0} computes (fg.opaque, fg.pure_callback), which is known only when the "
    "program runs",
    "call {0} outside of the function, and pass what it returns as an argument; or read the value in {0}; or write "
    "`torch.where(condition, a, b)` or `torch.cond(condition, f, g, (x,))`; where a distribution checks its arguments, "
    "validate_args=False",
)
SIZE_OF_CALLBACK = Refusal(
    DataDependentShapeError,
    "the size of a result depends on a value that {0} computes (fg.opaque, fg.pure_callback), which is known only when "
    "the program runs",
    "call {0} outside of the function, and pass what it returns as an argument; or use a form of fixed size: "
    "torch.where(mask, x, 0) for x[mask]",
)
ASKED_FOR_ARRAY = Refusal(
    DataDependentControlFlowError,
    "the function asked for the values of a tensor as a NumPy array, which are not known while it is traced",
    "compute with torch functions, or put what converts into a function f of its own, and write y = "
    "fg.pure_callback(f, like, x), with a tensor like that looks like its result",
)
SIZE_OF_VALUES = Refusal(
    DataDependentShapeError,
    "the size of the result of {0} depends on tensor values, which are not known while tracing",
    "use a form of fixed size: torch.where(mask, x, 0) for x[mask], or compute the indices outside",
)
SIZE_OF_SOLUTION = evolve(
    SIZE_OF_VALUES,
    fix="torch.linalg.pinv(a) @ b, or torch.linalg.qr and solve_triangular",
)
VALUES_ON_THE_WAY = Refusal(
    DataDependentControlFlowError,
    "an operation reads the values of a tensor on its way, or asks where they lie, which is not known while it is "
    "traced",
    "pass the values as Python numbers, compute what depends on them outside, or wrap what reads memory in a "
    "torch.library.custom_op",
)
VIEW_WILL_NOT_DO = Refusal(TraceError, "{0}", "use reshape(), which copies where a view will not do")
RESULT_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function's result{0} was {1} ({2}) in its first run and is {3} ({4}) in its second",
    "make it a pure function of its arguments: its result must not depend on what ran before",
)
FILLS_CACHE = Refusal(
    ImpureFunctionError,
    "the function writes to Python state ({0}) in the call that fills the functools.lru_cache {1}, and not in the next",
    "call {1} once, with these arguments, before the compiled function",
    is_first=True,
)
FILLS_CACHE_FIRST = Refusal(
    ImpureFunctionError,
    "the call fills the functools.lru_cache {0} with tensors that it makes, and the next calls find them there",
    "call {0} once, with these arguments, before the compiled function",
    is_first=True,
)
DROPS_CACHED = Refusal(
    ImpureFunctionError,
    "the call fills the functools.lru_cache {0}, which is full: it drops what it kept, for the next calls to make anew",
    "give {0} a larger maxsize",
    is_first=True,
)
WRITES_TO_CACHED = Refusal(
    ImpureFunctionError,
    "the function writes to a tensor that the functools.lru_cache {0} keeps since this call",
    "call {0} once, with these arguments, before the compiled function",
    is_first=True,
)
KEYED_BY_TENSORS = Refusal(
    UnsupportedTensorError,
    "the function asks which object a tensor is that it is given, and {0} has tensors, or their ids, as keys: each "
    "call may bring another one",
    "use names as keys, or let the function be given what is found there",
)
OWN_DEFAULT_DTYPE = Refusal(
    UnsupportedOperatorError,
    "the function calls {0} of whole numbers under a default dtype that it has set itself, which its program does not",
    "cast them first: x.to(torch.get_default_dtype())",
)
STRUCTURE_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function returned another structure in its second run than in its first",
    "make it a pure function of its arguments: its result must not depend on what ran before",
)
MEMORY_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function gives {0} other memory in one of two runs",
    "make it a pure function of its arguments: what it does to them must not depend on what ran before",
)
STORE_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function stores {0} in one of two runs",
    "make it a pure function of its arguments: what it does to them must not depend on what ran before",
)
WRITE_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function writes to {0} in its second run and did not in its first",
    "make it a pure function of its arguments: what it writes to must not depend on what ran before",
)
GRADIENT_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function sets the gradient of {0} in one of two runs",
    "make it a pure function of its arguments: what it does to them must not depend on what ran before",
)
CALL_BEFORE_DRAWN_READ = Refusal(
    DataDependentControlFlowError,
    "the function calls {0} and then reads a value that is drawn: on another path, the call has happened",
    "draw before it, or use fg.pure_callback where it has no effect",
)
ONWARD_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function calls .backward(), which goes on through the history of {0}, in one of two runs",
    "make it a pure function of its arguments: what it differentiates must not depend on what ran before",
)
RETURNS_OWN_LEAF = Refusal(
    UnsupportedTransformError,
    "the function returns a leaf it made itself (requires_grad_() inside) together with results that depend on it",
    "make the leaf outside and pass it as an argument",
)
ATTRIBUTE_OF_RESULT = Refusal(
    ResultError,
    "the function returns a tensor with an attribute that holds a tensor it computed: result{0}.{1}",
    "return both",
)
CUDNN_STATISTICS = Refusal(
    UnsupportedTensorError,
    "cuDNN's batch normalisation updates running statistics behind the trace's back",
    "run it with torch.backends.cudnn.flags(enabled=False)",
)
HISTORY_OF_INPUT = Refusal(
    UnsupportedTensorError,
    "the function looks into the history of an input (grad_fn.{0})",
    "look at it outside of the function",
)
ASKS_WHAT_CHANGES = Refusal(UnsupportedTensorError, "the function asks {0}, which is another one in each call", "{1}")
BASE_OF_INPUT = Refusal(
    UnsupportedTensorError,
    "the function uses the tensor that an input is a view of (_base)",
    "pass it as an argument",
)
NUMBER_LEFT_BEHIND = Refusal(
    TraceError,
    "the function uses a number that an earlier trace left behind",
    "do not keep numbers it was given in a cache, a global or an attribute; return them",
)
CHECKPOINT_CONTEXTS = Refusal(
    UnsupportedTransformError,
    "torch.utils.checkpoint is given a context_fn whose contexts are not those of create_selective_checkpoint_contexts",
    "say what is saved with a policy: context_fn=partial(create_selective_checkpoint_contexts, policy)",
)
POLICY_ANSWER = Refusal(
    UnsupportedTransformError,
    "a checkpoint policy asks for {0} of {1}, and values are kept where they are",
    "answer with MUST_SAVE or MUST_RECOMPUTE",
)
CALLS_LINEARIZE = Refusal(
    UnsupportedTransformError,
    "the function calls torch.func.linearize, which starts a tracer of its own",
    "fg.linearize_compiled(f, *primals), which may stand inside; or torch.func.linearize outside, of the compiled "
    "function",
)
CONSTANT_OF_PYTREE = Refusal(
    ResultError,
    "the function returns a {0}, and what its pytree takes for constant holds a tensor: context{1}",
    "let the flatten function of {0} return the tensor among the children, not in the context",
)
RESULT_HIDES_TENSOR = Refusal(
    ResultError,
    "the function returns a {0}, which is no pytree, and a tensor it computed is in it: result{1}{2}",
    "{3}",
)
VALUE_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function's result{0} was {1!r} in its first run and is {2!r} in its second",
    "make it a pure function of its arguments: no clocks, no counters, no randomness from Python",
)
RETURNS_NEW_OBJECT = Refusal(
    ResultError,
    "the function makes a {0} and returns it: eager PyTorch returns a new one from each call, a compiled function"
    " would return this one from all of them",
    "{1}",
)
ASKED_FOR_MEMORY = Refusal(
    DataDependentControlFlowError,
    "the function asked for {0}: there is no memory behind a tensor while it is traced",
    "compute with torch functions, do it outside of the function, or wrap what reads memory in a "
    "torch.library.custom_op",
)
STORAGE_SIZE = Refusal(
    DataDependentControlFlowError,
    "the function asked how large the storage of an input is, which may be larger than what the input looks at",
    "x.numel() * x.element_size()",
)
OF_OUTER_TRANSFORM = Refusal(
    CapturedTransformError,
    "the function closes over a tensor {0} that belongs to an enclosing torch.func transform",
    "let the compiled function be the outermost: compile the transformed function, fg.jit(torch.vmap(f))",
)
PULLBACK_OF_HISTORY = Refusal(
    CapturedTransformError,
    "the function calls what torch.func.vjp returned outside, whose graph of eager PyTorch saved a tensor {0} that is "
    "itself differentiated",
    "let vjp be of a compiled function: fg.vjp_compiled(f, x), or torch.func.vjp(fg.jit(f), x)",
)
CAPTURE_IN_TWO_RUNS = Refusal(
    TraceError,
    "the function used another outside tensor ({0}) in its second run than in its first",
    "make it a pure function of its arguments: no caches filled on the first call, no randomness from Python",
)
LEAF_PAST_PYTHON = Refusal(
    UnsupportedTensorError,
    "a tensor that requires grad ({0}) is used where no Python function of PyTorch's is called for it (TorchScript): "
    "its gradient would be lost",
    "call the Python function, or the module, of which TorchScript was made; or detach() the tensor, or run it under "
    "torch.no_grad()",
)
TENSOR_LEFT_BEHIND = Refusal(
    TraceError,
    "the function uses a tensor ({0}) that an earlier trace left behind",
    "do not keep tensors computed in the function in a cache, a global or an attribute; return them (has_aux=True)",
)
WRITES_TO_LIST = Refusal(UnsupportedTensorError, "{0} writes to tensors in a list", "give it one argument per tensor")
COTANGENT_DIFFERS = Refusal(
    TraceError,
    "an incoming gradient is {0}, and backward was compiled for {1}",
    "pass a gradient that is made as the output is: torch.ones_like(out)",
)
ITERATES = Refusal(
    ImpureFunctionError,
    "the function reads {0}, an iterator that goes on with each call: what it gives would be the same on each call",
    "take the next item outside and pass it as an argument",
)
CHANGED_BEFORE_BACKWARD = Refusal(
    TraceError,
    "{0} was changed between a forward pass and a backward pass that runs the function again: one that is "
    "differentiated (create_graph=True), or whose Python reads values or writes to state: {1}",
    "change it after the backward pass",
)
CHANGED_AT_LEVEL = Refusal(
    UnsupportedTransformError,
    "the backward pass of a function that exchanges more than values (it adds a tensor to a set, or writes to memory "
    "that inputs share) reads Python state that has changed since the call, at a level of torch.func: {0}, among "
    "others",
    "change it after the backward pass, or differentiate with .backward()",
)
ABSENT_GRADIENTS = Refusal(
    UnsupportedTransformError,
    "Python in the backward pass hears of it where no gradient comes in, and one without gradients for {1} is none of "
    "the {0} passes that were traced",
    "differentiate a sum of all results; or let the autograd.Function be given zeros: ctx.set_materialize_grads(True)",
)
ACCUMULATES_UNKNOWN = Refusal(
    UnsupportedTransformError,
    "the function calls .backward() in its backward pass, and uses only there the {0}, which it closes over",
    "use the tensor in the forward pass, too, or compute its gradient with torch.autograd.grad there",
)
ACCUMULATED_AND_ASKED = Refusal(
    UnsupportedTransformError,
    "the function asks in its backward pass for the .grad of a {0}, or sets it, and adds to it there by a .backward()",
    "compute what is added with torch.autograd.grad there, and ask for .grad outside",
)
SECOND_DERIVATIVE_OF_GRADIENT = Refusal(
    UnsupportedTransformError,
    "a function that sets or reads {0}.grad, or calls requires_grad_() on it, is differentiated a second time",
    "compute the gradient with torch.autograd.grad inside, and do to leaves outside what leaves need",
)
SECOND_DERIVATIVE_ONWARD = Refusal(
    UnsupportedTransformError,
    "a function that calls .backward() through the history of {0} is differentiated a second time",
    "compute the gradient with torch.autograd.grad inside, and return it",
)
REBOUND_BEFORE_BACKWARD = Refusal(
    TraceError,
    "{0} was rebound between a forward pass and a backward pass that runs the function again: one that is "
    "differentiated (create_graph=True), or that reads the gradient it is given",
    "pass it as an argument, or rebind it after the backward pass",
)
OPAQUE_CLOSES_OVER = Refusal(
    TraceError,
    "{0} runs when the program does, and closes over a tensor, or a number, of the trace",
    "pass it as an argument: {1}",
)
FORWARD_OVER_WRITES = Refusal(
    UnsupportedTransformError,
    "a gradient of a function that writes to memory that inputs share, or to more than values, is differentiated in "
    "forward mode",
    "take the derivative by torch.func: torch.func.jvp(torch.func.grad(f), ...)",
)
LEGACY_VMAP_TWICE = Refusal(
    UnsupportedTransformError,
    "a compiled function is called under two levels of autograd's own vmap (is_grads_batched)",
    "use torch.func.vmap and torch.func.vjp",
)
RAISES_IN_TRACE = Refusal(
    TraceError,
    "the function raises {0} where it is traced ({1}), and has run in eager PyTorch, where it raises none",
    "let it not depend on what a traced tensor lacks: its type, its memory, attributes of its own",
)
RUNS_ONCE = Refusal(
    UnsupportedTransformError,
    "a derivative runs the function again, and {0} ({1!r}) runs once",
    "call it outside of the compiled function, or take both derivatives inside: fg.jit(torch.func.grad(...))",
)
ASKS_OF_TANGENT = Refusal(
    UnsupportedTransformError,
    "the function asks whether a tensor that it computes requires grad, in forward mode of tensors that do",
    "ask it of an argument, or outside of the function",
)
RULE_NOT_IN_GRAPH = Refusal(
    UnsupportedTransformError,
    "the function exchanges more than values (it adds a tensor to a set, or writes to memory that inputs share), and "
    "is differentiated by its graph; {0} is not in that",
    "return what it leaves there, and write it outside of the function",
)
NO_FORWARD_RULE = Refusal(
    UnsupportedTransformError,
    "{0} is differentiated in forward mode, and custom_vjp has a rule for reverse mode alone",
    "define it with custom_jvp, from which reverse mode follows, or take the derivative in reverse mode (vjp, jacrev)",
)
NOT_SAVED = Refusal(ArchiveError, "this program cannot be saved: {0}", "{1}")
RESULT_IS_STORED = Refusal(
    ResultError,
    "the function returns a {0} that it made and has stored, too: each call would make two",
    "return it, and store it outside; or return the tensors in it",
)
NO_PROGRAM = Refusal(ArchiveError, "this file is no program", "save one: fg.jit(f).program(*args).save(path)")
SAVED_BY_ANOTHER = Refusal(
    ArchiveError, "this program was saved with {0}; here is {1}", "save it again with what is here, or install that"
)
NEEDS_MORE = Refusal(
    ArchiveError,
    "this program needs what is not here ({0})",
    "before it is loaded, import the module that defines it, and what registers its operators",
)
LOADED_DERIVATIVE = Refusal(
    ArchiveError,
    "a program of {0} that was loaded is differentiated once, not twice: its function is not here",
    "save a program of the derivative: fg.grad_compiled(f).program(*args)",
)
LOADED_NARROWED = Refusal(
    ArchiveError,
    "a program of {0} for any size was loaded, and a gradient comes in for some of its results alone",
    "let the loss depend on all results, or save a program with dynamic=False",
)
LOADED_UNDER_TRANSFORM = Refusal(
    UnsupportedTransformError,
    "a program of {0} that was loaded was called inside a trace, or under a transform of torch.func",
    "save a program of the transformed function: fg.vmap_compiled(f).program(*args)",
)
PROGRAM_UNDER_TRANSFORM = Refusal(
    UnsupportedTransformError,
    "a program of {0} was called under a transform of torch.func",
    "call the compiled function: it makes a program for the transform",
)
POINT_UNDER_SAVED_HOOKS = Refusal(
    UnsupportedTransformError,
    "{0} is called where hooks pack what is saved for backward (a checkpoint outside of a compiled function), which "
    "torch.func does not allow",
    "compile what is checkpointed: fg.checkpoint(fg.jit(f))",
)
