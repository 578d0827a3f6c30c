"""Lab 04: classes of mistakes, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"
_PLACE = "rank, size = dist.get_rank(), dist.get_world_size()\n"
_PASS_ON = """
def pass_on(outgoing, incoming):
    rank, size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(outgoing.contiguous(), (rank + 1) % size)
    dist.recv(incoming, (rank - 1) % size)
    sending.wait()


"""
_SCATTER = (
    _PLACE
    + """pieces = tensor.flatten().tensor_split(size)
partial = pieces[rank - 1].clone()
for step in range(2, size + 1):
    mine = pieces[(rank - step) % size]
    received = torch.empty_like(mine)
    pass_on(partial, received)
    partial = received + mine
return partial"""
)
_GATHER = (
    _PLACE
    + """whole = piece.new_empty(num_elements)
pieces = list(whole.tensor_split(size))
pieces[rank].copy_(piece)
for step in range(size - 1):
    pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])
return whole"""
)
# All tensors go once round, so that every rank has them all.
_EVERYTHING = (
    _PLACE
    + """all_of_them = [None] * size
all_of_them[rank] = tensor.flatten()
for step in range(size - 1):
    came = torch.empty_like(all_of_them[rank])
    pass_on(all_of_them[(rank - step) % size], came)
    all_of_them[(rank - step - 1) % size] = came
"""
)


def _define(head: str, body: str) -> str:
    lines = "".join(f"    {line}\n" if line else "\n" for line in body.strip("\n").splitlines())
    return f"def {head}:\n{lines}\n\n"


def scatter(body: str = _SCATTER, name: str = "reduce_scatter") -> str:
    """An answer to the first question."""
    return _IMPORTS + _PASS_ON + _define(f"{name}(tensor)", body)


def _scatter_but(old: str, new: str) -> str:
    assert old in _SCATTER
    return scatter(_SCATTER.replace(old, new))


def gather(body: str = _GATHER) -> str:
    """An answer to the second question."""
    return _IMPORTS + _PASS_ON + _define("all_gather(piece, num_elements)", body)


def _gather_but(old: str, new: str) -> str:
    assert old in _GATHER
    return gather(_GATHER.replace(old, new))


def both(body: str) -> str:
    """An answer to the third question, on right answers to the others."""
    return (
        _IMPORTS
        + _PASS_ON
        + _define("reduce_scatter(tensor)", _SCATTER)
        + _define("all_gather(piece, num_elements)", _GATHER)
        + _define("all_reduce(tensor)", body)
    )


_NO_LIBRARY = (
    "The task rules this collective out. A ring is made of send and receive: that is the whole exercise, and"
    " the check sees every call."
)
_HANG = (
    "Everybody waits for everybody. When all ranks send first and receive afterwards, nobody is there to"
    " receive: start the one (isend), do the other, then wait for the first."
)
_TOO_MANY_BYTES = (
    "The numbers are right, and a rank sends more than a ring does: pass one piece on at each step, not whole"
    " tensors."
)
_NOT_NEIGHBOURS = (
    "The numbers and the bytes are right, and a rank speaks to several others. In a ring it sends to its "
    "right"
    " neighbour only, and hears from its left one."
)
_TOO_MANY_MESSAGES = (
    "The bytes are right, and come in more messages than steps: each costs a latency. Send a piece as "
    "one tensor."
)
_NOT_WAITED = (
    "All is right but one thing: a message was started and never waited for. Until `work.wait()` has "
    "returned the"
    " tensor is not yours to change or to let go of, and here it only happened to go well."
)
_NO_MESSAGES = (
    "The ranks did not send each other anything: what they hold cannot come from the ring that was asked for."
)
_OTHER = "The values are off, in a way that fits none of the usual mistakes."
_WRONG_TYPE = "Return a plain torch.Tensor: nothing wrapped around it, no list, no array, no subclass."
_WRONG_DTYPE = "The dtype changed: keep that of the tensor you were given, on the way too."
_STAR_PIECES = (
    _PLACE
    + """pieces = [part.contiguous() for part in tensor.flatten().tensor_split(size)]
sends = [dist.isend(pieces[peer], peer) for peer in range(size) if peer != rank]
partial = pieces[rank].clone()
for peer in range(size):
    if peer != rank:
        received = torch.empty_like(partial)
        dist.recv(received, peer)
        partial += received
for send in sends:
    send.wait()
return partial"""
)
_DIRECT_GATHER = (
    _PLACE
    + """whole = piece.new_empty(num_elements)
pieces = list(whole.tensor_split(size))
pieces[rank].copy_(piece)
sends = [dist.isend(piece, peer) for peer in range(size) if peer != rank]
for peer in range(size):
    if peer != rank:
        dist.recv(pieces[peer], peer)
for send in sends:
    send.wait()
return whole"""
)
_HALVES = """    half = len(partial) // 2
    pass_on(partial[:half], received[:half])
    pass_on(partial[half:], received[half:])"""

REDUCE_SCATTER_MISTAKES = (
    Mistake(
        "forbidden",
        _NO_LIBRARY,
        scatter(
            "dist.all_reduce(tensor)\nreturn "
            "tensor.flatten().tensor_split(dist.get_world_size())[dist.get_rank()]"
        ),
    ),
    Mistake(
        "hang",
        _HANG,
        _scatter_but(
            "pass_on(partial, received)",
            "dist.send(partial, (rank + 1) % size)\n    dist.recv(received, (rank - 1) % size)",
        ),
    ),
    Mistake(
        "not_summed",
        "Each rank holds its own piece of its own tensor: nobody's numbers have been added to it.",
        scatter(_PLACE + "return tensor.flatten().tensor_split(size)[rank].clone()"),
    ),
    Mistake(
        "whole_sum",
        "Each rank holds the whole sum. A reduce-scatter leaves a rank with its own piece of it, and "
        "costs half"
        " as much.",
        scatter(_EVERYTHING + "return sum(all_of_them)"),
    ),
    Mistake(
        "wrong_piece",
        "Each rank holds a piece of the sum, complete, but not its own: rank k is to end with piece k. A "
        "piece is"
        " complete where its way ends, so piece k must set out from rank k + 1.",
        _scatter_but("rank - 1]", "rank]").replace("rank - step)", "rank - step + 1)"),
    ),
    Mistake(
        "mean",
        "These are means. A reduce-scatter adds up; who wants the mean divides by the number of ranks "
        "afterwards.",
        _scatter_but("return partial", "return partial / size"),
    ),
    Mistake(
        "own_lost",
        "Each rank's own numbers are missing from its piece: add them before the piece is handed back, too.",
        _scatter_but("partial = received + mine", "partial = received + mine if step < size else received"),
    ),
    Mistake(
        "own_twice",
        "Each rank's own numbers are in its piece twice: the piece that sets out is another rank's, and "
        "its own"
        " comes last.",
        _scatter_but("return partial", "return partial + pieces[rank]"),
    ),
    Mistake(
        "changed_input",
        "The tensor that came in has changed. Add into a copy: a piece that tensor_split gives is a "
        "window on the"
        " tensor.",
        _scatter_but("partial = received + mine", "partial = mine.add_(received)"),
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
        scatter(_EVERYTHING + "return sum(all_of_them).tensor_split(size)[rank]"),
    ),
    Mistake("not_neighbours", _NOT_NEIGHBOURS, scatter(_STAR_PIECES)),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
        _scatter_but("    pass_on(partial, received)", _HALVES),
    ),
    Mistake("not_waited", _NOT_WAITED, scatter().replace("    sending.wait()\n", "")),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake("wrong_type", _WRONG_TYPE, _scatter_but("return partial", "return [partial]")),
    Mistake("wrong_dtype", _WRONG_DTYPE, _scatter_but("return partial", "return partial.to(torch.float16)")),
    Mistake(
        "wrong_shape",
        "The piece is not as long as torch.tensor_split makes it: the first pieces have one number more "
        "where the"
        " length does not divide.",
        _scatter_but("return partial", "return partial[:-1]"),
    ),
    Mistake("other", _OTHER, _scatter_but("received + mine", "received - mine")),
)

ALL_GATHER_MISTAKES = (
    Mistake(
        "forbidden",
        _NO_LIBRARY,
        gather(
            _PLACE + "pieces = list(piece.new_empty(num_elements).tensor_split(size))\n"
            "dist.all_gather(pieces, piece)\nreturn torch.cat(pieces)"
        ),
    ),
    Mistake(
        "hang",
        _HANG,
        _gather_but(
            "pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
            "dist.send(pieces[(rank - step) % size], (rank + 1) % size)\n"
            "    dist.recv(pieces[(rank - step - 1) % size], (rank - 1) % size)",
        ),
    ),
    Mistake(
        "only_own_piece",
        "Each rank holds its own piece and nothing of the others: nothing has been handed round.",
        gather(
            _PLACE + "whole = torch.zeros(num_elements, dtype=piece.dtype)\n"
            "whole.tensor_split(size)[rank].copy_(piece)\nreturn whole"
        ),
    ),
    Mistake(
        "some_pieces",
        "Some pieces have arrived and others have not: it takes one step fewer than there are ranks, and "
        "at each"
        " step a rank passes on what it has just received.",
        _gather_but(
            "pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
            "pass_on(pieces[rank], pieces[rank - 1])",
        ).replace("new_empty(num_elements)", "new_zeros(num_elements)"),
    ),
    Mistake(
        "rotated",
        "Every rank has all pieces, in an order that begins with its own: put them in order of rank.",
        gather(
            _PLACE + "pieces = [piece]\nfor step in range(size - 1):\n"
            "    owner = (rank - step - 1) % size\n"
            "    came = torch.empty(len(range(num_elements)[owner::size]), dtype=piece.dtype)\n"
            "    pass_on(pieces[-1], came)\n    pieces.append(came)\n"
            "return torch.cat(pieces)"
        ),
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
        gather(
            _PLACE + "whole = torch.zeros(num_elements, dtype=piece.dtype)\n"
            "whole.tensor_split(size)[rank].copy_(piece)\n"
            "for step in range(size - 1):\n"
            "    came = torch.empty_like(whole)\n    pass_on(whole, came)\n"
            "    owner = (rank - step - 1) % size\n"
            "    whole.tensor_split(size)[owner].copy_(came.tensor_split(size)[owner])\n"
            "return whole"
        ),
    ),
    Mistake("not_neighbours", _NOT_NEIGHBOURS, gather(_DIRECT_GATHER)),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
        _gather_but(
            "    pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
            "    sent, came = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]\n"
            "    pass_on(sent[:1], came[:1])\n"
            "    pass_on(sent[1:], came[1:])",
        ),
    ),
    Mistake("not_waited", _NOT_WAITED, gather().replace("    sending.wait()\n", "")),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake("wrong_type", _WRONG_TYPE, _gather_but("return whole", "return pieces")),
    Mistake("wrong_dtype", _WRONG_DTYPE, _gather_but("return whole", "return whole.to(torch.float16)")),
    Mistake(
        "wrong_shape",
        "The whole is not num_elements numbers in one row.",
        _gather_but("return whole", "return whole[None]"),
    ),
    Mistake("other", _OTHER, _gather_but("return whole", "return -whole")),
)

_IN_TWO_STEPS = (
    "total = all_gather(reduce_scatter(tensor), tensor.numel())\ntensor.copy_(total.view_as(tensor))"
)

ALL_REDUCE_MISTAKES = (
    Mistake("forbidden", _NO_LIBRARY, both("dist.all_reduce(tensor)")),
    Mistake(
        "hang",
        _HANG,
        both(
            _PLACE + "row = tensor.flatten()\ncame = torch.empty_like(row)\n"
            "dist.send(row, (rank + 1) % size)\ndist.recv(came, (rank - 1) % size)"
        ),
    ),
    Mistake(
        "never_combined",
        "The ranks' tensors hold nothing of one another: the result never got into them.",
        both("row = tensor.flatten()\nrow.copy_(all_gather(reduce_scatter(row), row.numel()))").replace(
            "row = tensor.flatten()", "row = tensor.flatten().clone()"
        ),
    ),
    Mistake(
        "not_in_place",
        "What you return is right, and the tensor is not: overwrite the tensor that came in, also where its"
        " numbers do not lie in a row.",
        both("return all_gather(reduce_scatter(tensor), tensor.numel()).view(tensor.shape)"),
    ),
    Mistake(
        "mean",
        "These are means: an all-reduce adds up, and who wants the mean divides.",
        both(_IN_TWO_STEPS + "\ntensor /= dist.get_world_size()"),
    ),
    Mistake(
        "only_some_ranks",
        "Only some ranks hold the sum: after the all-gather every rank must write it into its tensor.",
        both(_IN_TWO_STEPS.replace("tensor.copy_", "dist.get_rank() or tensor.copy_")),
    ),
    Mistake(
        "different_bits",
        "Every rank has the sum, but not with the same bits: each added up in an order of its own. Let "
        "each piece"
        " be summed in one place only, and hand out what came out there.",
        both(
            _EVERYTHING + "total = tensor.flatten().clone()\nfor step in range(1, size):\n"
            "    total += all_of_them[(rank - step) % size]\ntensor.copy_(total.view_as(tensor))"
        ),
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
        both(_EVERYTHING + "tensor.copy_(sum(all_of_them).view_as(tensor))"),
    ),
    Mistake(
        "not_neighbours",
        _NOT_NEIGHBOURS,
        both(_IN_TWO_STEPS).replace(
            _define("all_gather(piece, num_elements)", _GATHER),
            _define("all_gather(piece, num_elements)", _DIRECT_GATHER),
        ),
    ),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
        both(_IN_TWO_STEPS).replace("    pass_on(partial, received)", _HALVES.replace("\n", "\n    ")),
    ),
    Mistake("not_waited", _NOT_WAITED, both(_IN_TWO_STEPS).replace("    sending.wait()\n", "")),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake(
        "nan",
        "There is a nan where every rank had numbers.",
        both(_IN_TWO_STEPS + "\ntensor *= float('inf')\ntensor -= tensor"),
    ),
    Mistake(
        "copy_of_rank_0",
        "Every rank holds rank 0's tensor: nothing was added to it.",
        both(
            "row = tensor.flatten()\nrank, size = dist.get_rank(), dist.get_world_size()\n"
            "if rank:\n    dist.recv(row, rank - 1)\n"
            "if rank < size - 1:\n    dist.send(row, rank + 1)\ntensor.copy_(row.view_as(tensor))"
        ),
    ),
    Mistake(
        "wrong_type",
        _WRONG_TYPE,
        both(
            "class Equal(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
            "tensor.__class__ = Equal"
        ),
    ),
    Mistake("wrong_dtype", _WRONG_DTYPE, both("tensor.data = tensor.data.to(torch.float16)")),
    Mistake(
        "wrong_shape",
        "The shape changed: keep the one that came in.",
        both("tensor.data = tensor.data.flatten()[None]"),
    ),
    Mistake("other", _OTHER, both(_IN_TWO_STEPS + "\ntensor *= 3")),
)
