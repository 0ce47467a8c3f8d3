"""What a trace refuses of memory and of what autograd knows of the caller's tensors: writes, aliases, leaves,
histories."""

from __future__ import annotations

from attrs import evolve

from ..errors import AliasContractError, MutationError, Refusal, ResultError

WRITES_OUTSIDE_IN_BACKWARD = Refusal(
    MutationError,
    "the function calls .backward(), and what that runs outside of it (a hook, a custom autograd.Function, a "
    "gradient that is added to in place) writes to an input, which the function has read by then",
    "call .backward() outside",
)
ONWARD_TO_OWN_GRADIENT = Refusal(
    MutationError,
    "the function calls .backward(), which goes on through the history of an input to a leaf whose gradient it sets "
    "or reads",
    "compute the one from the other inside of the function, or call .backward() outside",
)
BACKWARD_OF_OWN_LEAF = Refusal(
    MutationError,
    "the function returns what depends on a leaf it made itself (requires_grad_() inside), and its backward pass "
    "would fail",
    "make the leaf outside and pass it as an argument",
)
WRITES_IN_BACKWARD_OF_OWN_LEAF = Refusal(
    MutationError,
    "the function writes to {0} in a backward pass that goes to a leaf it made itself (requires_grad_() inside)",
    "make the leaf outside and pass it as an argument",
)
SHARED_WITH_ARRAY = Refusal(
    MutationError,
    "the function uses the array {0} and the tensor {1}, which are one memory, and writes to it by one of them",
    "use the tensor alone, or a copy of the array",
)
STORAGE_SET = Refusal(MutationError, "the function gives {0} other memory (set_ of a storage)", "x.set_(y) of a tensor")
METADATA_OF_SUBCLASS = Refusal(
    MutationError,
    "the function changes the metadata of {0}, a {1}",
    "return a tensor with the new metadata",
)
IN_PLACE_ON_LEAF = Refusal(
    MutationError,
    "{0} that requires grad is being used in an in-place operation: {1}",
    "write under torch.no_grad(), or into a copy: x = x.clone()",
)
RESIZED_UNFOLLOWED = Refusal(
    MutationError,
    "the function changes the sizes of {0} where the trace does not follow it (resize_, or in a custom "
    "autograd.Function)",
    "return a view instead",
)
DETACHED_AND_WRITTEN = Refusal(
    MutationError,
    "the function detaches {0} in place and writes to it in grad mode",
    "return it",
)
INFERENCE_TENSOR = Refusal(
    MutationError,
    "Inplace update to inference tensor outside InferenceMode is not allowed: {0}",
    "call it in inference mode, or pass a clone",
)
TRACKED_ONTO_ITSELF = Refusal(
    MutationError,
    "the function writes to {0}, several elements of which are one in memory, what requires grad",
    "write to what it is a view of, or to a clone",
)
SHARED_AT_ODDS = Refusal(
    AliasContractError,
    "the function writes to memory that {0} share, but {1}",
    "pass views of one tensor, or a clone",
)
ONWARD = Refusal(
    MutationError,
    "the function calls .backward(), which would go on through the history of {0}",
    "call torch.autograd.grad with respect to what is meant, or return the loss and call .backward() outside",
)
GRADIENT_OF_INPUT = Refusal(
    MutationError,
    "the function {0} {1} (.backward() inside, .grad =, requires_grad_()), and {2}",
    "compile the loss with grad_compiled, or call torch.autograd.grad inside, and do to leaves outside what leaves "
    "need",
)
HOOKED_GRADIENT_OF_INPUT = evolve(
    GRADIENT_OF_INPUT,
    fix="pass x.detach().requires_grad_(), and do to its gradient what the hook does",
)
RETURNS_RETAINED = Refusal(
    MutationError,
    "the function returns, or stores, {0}, which keeps its gradient (retain_grad()), beside what depends on it",
    "keep the gradient by a hook: y.register_hook(gradients.append); or compute what depends on it in another function",
)
OTHER_MEMORY = Refusal(
    MutationError,
    "the function gives {0} other memory (.data =, set_, resize_, out=) and {1}",
    "return the new tensor, or copy_() its values; return results detached",
)
SUBCLASS_SHARES_MEMORY = Refusal(
    AliasContractError,
    "the function writes to {0}, which shares memory with {1}, and one of them is a tensor subclass",
    "pass tensors that share no memory: a clone",
)
RETURNS_OVER_INNER = Refusal(
    AliasContractError,
    "the function writes to {0} and returns a tensor over its inner memory (out{1})",
    "return a clone of it",
)
VIEW_OF_AS_STRIDED = Refusal(
    AliasContractError,
    "the function writes to a view of an as_strided view",
    "take the view by slices, transposes and reshapes",
)
RESIZED_AROUND = Refusal(
    MutationError,
    "the function resizes a tensor in place to memory that lies around it (resize_, as_strided_)",
    "return a new tensor",
)
SWITCHED_OFF_WITH_VIEW = Refusal(
    MutationError,
    "the function switches requires_grad off (requires_grad_()) of a leaf, writes to it, and uses a view that it took "
    "before",
    "take the view after requires_grad_(False), or of x.detach()",
)
WRITES_INTO_LEAF = Refusal(
    MutationError,
    "the function writes into a tensor it was given",
    "write into a copy: x = x.clone()",
)
WRITES_INTO_ONE_OF_VIEWS = Refusal(
    MutationError,
    "the function writes into one of several views that one operation has returned (chunk, split, unbind), which "
    "autograd forbids",
    "write into a slice, x[:2].mul_(y), or use what returns a new tensor",
)
SWITCHED_TOO_LATE = Refusal(
    MutationError,
    "the function gives a tensor other memory, or other sizes, and switches requires_grad (requires_grad_()) of it",
    "call requires_grad_() before",
)
RETAINED_OUTSIDE = Refusal(
    MutationError,
    "the function asks for the gradient of a tensor {0} that is computed outside, and has it retained",
    "do it outside: x.retain_grad() before the call",
)
RESTRIDED_AND_ASKED = Refusal(
    MutationError,
    "the function changes the sizes of a tensor {0}, or gives it other memory, and asks for its gradient",
    "ask for the gradient before",
)
ACCUMULATE_HOOK = Refusal(
    MutationError,
    "the function registers a hook on a tensor it was given (register_post_accumulate_grad_hook)",
    "register it outside of the function",
)
HOOK_IN_BACKWARD = Refusal(
    MutationError,
    "a backward pass registers a hook on a tensor that the function was given (register_hook)",
    "register it in the forward pass, or outside of the function",
)
REMOVES_HOOK = Refusal(
    MutationError,
    "the function, or a hook that its .backward() runs, removes a hook of a tensor it was given (handle.remove())",
    "remove it outside of the function",
)
HOOKS_OF_INPUT = Refusal(
    MutationError,
    "the function asks for the gradient of a tensor {0} it was given (torch.autograd.grad), and hooks of it would "
    "have to run",
    "pass x.detach().requires_grad_(), and do to its gradient what the hook does",
)
SWITCHED_OFF_BASE = Refusal(
    MutationError,
    "the function switches requires_grad off (requires_grad_()) of a tensor that another input is a view of",
    "do it outside, before the view is taken",
)
STORES_INTO_ARGUMENT = Refusal(
    MutationError,
    "the function stores into a container it was given, at {0}, of a class of which no store is seen",
    "return the new container; write in place into the tensors in it, state['h'].copy_(h); or store into a dict, a"
    " list, or an object with attributes",
)
STORES_UNDER_LEVEL = Refusal(
    MutationError,
    "the function stores into a container it was given, at {0}, under a transform of torch.func, in which it has "
    "another one",
    "return what it stores, and store it outside of the transform; or write in place into the tensors in it",
)
COMPARES_CONTAINERS = Refusal(
    AliasContractError,
    "the function was given a container that it reads in {0}, too, and compares objects",
    "compare a tensor in it (a['x'] is b['x']), or a number by which the caller tells one from another",
)
STORES_INTO_SHARED = Refusal(
    MutationError,
    "the function stores into a container it was given, {0}, which it was given twice, or which Python state holds,"
    " too",
    "pass it once; or a copy of it, dict(d)",
)
WRITES_STATE_IN_BACKWARD = Refusal(
    MutationError,
    "the function writes to Python state in its backward pass: {0}",
    "write in the forward pass, or wrap the function that writes, and does not differentiate: fg.opaque(hook, "
    "like=None), which runs in each backward pass",
)
RAISES_AFTER_WRITE = Refusal(
    MutationError,
    "a backward pass writes to tensors, or keeps some, before it raises {0} ({1})",
    "raise before anything is written, or write with fg.opaque(hook, like=None), which runs as it is",
)
SWITCHED_NO_GRAD_VIEW = Refusal(
    MutationError,
    "the function calls requires_grad_() on a tensor it was given, a view taken under no_grad of what requires grad",
    "call it outside of the function, which need not call it then",
)
HOOK_OF_OWN_OBJECT = Refusal(
    MutationError,
    "the function registers a hook that writes to a {0} in the backward pass, which the function made itself",
    "make it outside of the function: each call of the compiled function has that one; or call .backward() inside",
)
ONWARD_CREATE_GRAPH = Refusal(
    MutationError,
    "the function calls .backward(create_graph=True), which would go on through the history of an input {0}",
    "call torch.autograd.grad with respect to what is meant",
)
ONWARD_TO_TARGET = Refusal(
    MutationError,
    "the function calls torch.autograd.grad with respect to an input from which another one, {0}, was computed: in "
    "eager PyTorch the gradient comes through that history, too",
    "compute it inside of the function, or pass {0}.detach() if that is not meant",
)
ONWARD_TO_BASE = Refusal(
    MutationError,
    "the function calls .backward(), which would go on through the history of {0}, to another input, a leaf that it "
    "is a view of",
    "call torch.autograd.grad with respect to what is meant, or return the loss and call .backward() outside",
)
BACKWARD_INPUTS = Refusal(
    MutationError,
    "the function calls .backward(inputs=…), which sets the gradient of an input {0} that is computed outside",
    "call torch.autograd.grad, and set x.grad to what it returns",
)
ONWARD_WITH_FAULTS = Refusal(
    MutationError,
    "the function calls .backward(), which would go on through the history of {0}, {1}",
    "call torch.autograd.grad with respect to what is meant, or return the loss and call .backward() outside",
)
STORES_OWN_LEAF = Refusal(
    MutationError,
    "the function stores a parameter that it makes, or another leaf ({0}), together with results that depend on it",
    "make it before: call the function once under torch.no_grad(), or make it where the object is made",
)
MAKES_OWN_LEAF = evolve(STORES_OWN_LEAF, is_first=True)
STORES_WITH_GRADIENT = Refusal(
    MutationError,
    "the function stores a tensor that it made and gave a gradient (.grad =, .backward()): {0}",
    "store the gradient itself, or return the tensor, too",
)
RETURNS_NO_GRAD_VIEW = Refusal(
    MutationError,
    "the function returns a view taken under no_grad of what it detached, and wrote to that what requires grad",
    "take the view in grad mode, or after the write",
)
SETS_ATTRIBUTE = Refusal(
    MutationError,
    "the function sets an attribute of a tensor it was given: {0}.{1}",
    "set it outside, or return what it is set to",
)
HOOK_ON_RESULT = Refusal(
    MutationError,
    "the function registers a hook on a tensor it was given, and returns that tensor",
    "return another tensor, x.view_as(x), or register the hook outside of the function",
)
HEARD_THROUGH_RESULT = Refusal(
    ResultError,
    "a hook, or retain_grad(), listens to a result from which another one was computed in the same call: the gradient "
    "of that one does not go through it",
    "compute the other one outside of the function, or register the hook inside; or differentiate inside",
)
OVERLAPS_ITSELF = Refusal(
    MutationError,
    "{0} writes to memory that overlaps itself: the result depends on the order in which it goes",
    "write to what it is a view of, or to a clone",
)
OVERLAPS_ITSELF_TRACKED = Refusal(
    MutationError,
    "{0} writes to memory that overlaps itself what requires grad: in the backward pass, the result depends on the "
    "order in which it goes",
    "write to what it is a view of, or to a clone",
)
AROUND_A_VIEW = Refusal(
    AliasContractError,
    "the function writes to memory around a tensor it looks at (as_strided)",
    "pass the tensor all of whose memory it looks at, and take the view of that",
)
MEMORY_AFTER_USE = Refusal(
    MutationError,
    "the function gives {0} other memory (.data =) after it was used, and goes back through what used it",
    "use the other tensor itself, or give it before",
)
MEMORY_AND_WRITES = Refusal(
    MutationError,
    "the function gives {0} other memory (.data =), and writes to it, to a view of it, or to what it is a view of",
    "use the other tensor itself",
)
HISTORY_REUSED = Refusal(
    MutationError,
    "the function gives {0} with a history other memory, or one to it (set_), and then uses another with that history",
    "x.data = y",
)
MEMORY_OF_OTHER_KIND = Refusal(
    MutationError,
    "the function gives {0} that requires grad other memory of another kind, {1}, and goes back through it",
    "use the other tensor itself: autograd would go on with a gradient of other sizes",
)
RESTRIDED_AFTER_USE = Refusal(
    MutationError,
    "the function changes the sizes of a tensor {0} that was computed or used, under no_grad ({1})",
    "do it in grad mode or before, or take the view: autograd would go on with a gradient of other sizes",
)
MEMORY_OF_STALE_VIEW = Refusal(
    MutationError,
    "the function returns a view that it gave other memory (.data =, set_), and that autograd forbids to use once its "
    "base was written to",
    "return the other tensor itself",
)
RESTRIDES_ITS_OWN_WAY = Refusal(
    MutationError,
    "the function changes the sizes of a {0} in place ({1}), which that class does otherwise than it takes such a view",
    "take the view instead: x.{2}()",
)
VIEW_SWITCHED_AND_RESTRIDED = Refusal(
    MutationError,
    "the function calls requires_grad_() on a view (.backward() inside, .grad =, requires_grad_()), and changes its "
    "sizes",
    "take the view instead, or change its sizes outside",
)
MEMORY_OF_OTHER_CLASS = Refusal(
    MutationError,
    "the function gives a tensor {0} other memory of another class or device, {1}",
    "give it a plain tensor on its own device, or use the other tensor itself",
)
MEMORY_IN_TWO_WAYS = Refusal(MutationError, "the function gives a tensor other memory in two ways", "one of the two")
STORAGE_GIVEN = Refusal(
    MutationError,
    "the function gives a tensor the memory of a storage (set_, torch.load)",
    "x.set_(y) of a tensor; what is read of a file, read outside of the function",
)
HISTORY_GIVEN = Refusal(
    MutationError,
    "the function gives a tensor with a history other memory, or one to it (set_), in a gradient transform, a "
    "second time, or through a view it takes of an input",
    "x.data = y",
)
RESIZES_GIVEN = Refusal(
    MutationError,
    "the function resizes other memory that it gave a tensor",
    "give it what it is to hold",
)
OUT_REQUIRES_GRAD = Refusal(
    MutationError,
    "the function gives a tensor that requires grad other memory (out=)",
    "out.copy_(value)",
)
OUT_TRANSPOSED = Refusal(
    MutationError,
    "the function resizes what out= names to a transposed layout",
    "return a new tensor",
)
STORAGE_CHANGED = Refusal(
    MutationError,
    "the function changes the storage of a tensor ({0})",
    "write to the tensor (x.copy_(y), x.zero_()), or do it outside of the function",
)
MEMORY_MOVED = Refusal(
    MutationError,
    "the function moves the memory of a tensor ({0}())",
    "do it outside of the function",
)
MORE_THAN_DATA = Refusal(MutationError, "{0} {1}", "call it outside of the function")
BODY_WRITES = Refusal(
    MutationError,
    "{0} writes to a tensor {1} that it is given, or closes over",
    "write to a copy, x = x.clone(), and return it",
)
WRITES_WHAT_IT_READS = Refusal(
    MutationError,
    "{0} writes to memory it reads elsewhere: the result depends on the order in which it goes",
    "read a copy: x[2::2].copy_(x[:-2:2].clone())",
)
WRITES_BELOW_ARRAY = Refusal(
    MutationError,
    "the function writes to a tensor of which it has made a NumPy array, which shares its memory",
    "make the array of a copy, x.clone().numpy(), or once more after the write",
)
SHARED_BY_SAMPLES = Refusal(
    MutationError,
    "the function writes to a tensor that all samples of a vmap share, and each sample would write other values",
    "pass the tensor as an argument with a batch dimension, or return what is to be written",
)
STORES_OBJECT = Refusal(
    MutationError,
    "the function stores {0} in {1}",
    "store plain values, tensors, or lists, tuples and dicts of them; or return it (has_aux=True for a gradient)",
)
REGISTERS_HOOK = Refusal(
    MutationError,
    "the function registers a hook of a module ({0} in {1})",
    "register it where the module is made",
    is_first=True,
)
OUTPUT_WRITES = Refusal(
    MutationError,
    "what the function prints, logs or warns of comes to {0}, which writes to {1}, and the function uses {1} itself: "
    "output is put out when its program has run",
    "let {0} write to something else, or log after the call",
)
OPAQUE_ALIASED_WRITE = Refusal(
    AliasContractError,
    "{0} writes to an argument that shares memory with another one",
    "pass it once, or a clone() of what is only read",
)
OTHER_MEMORY_BEFORE_BACKWARD = Refusal(
    MutationError,
    "{0} was given other memory (x.data = y) between a forward pass and a backward pass that runs the function again, "
    "or that has computed in forward what eager PyTorch computes of it then",
    "give it other memory after the backward pass, or pass a view of it, x[:], which stays where it is",
)
