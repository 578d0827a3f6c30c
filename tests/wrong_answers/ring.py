"""Lab 04: a wrong answer for each mistake."""

from tests.wrong_answers.behind import BEHIND_THE_SWITCH

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


def _behind_the_switch(answer: str) -> str:
    return answer.replace(_PASS_ON, BEHIND_THE_SWITCH)


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

_ALL_REDUCE_BEHIND = "behind_the_switch().allreduce([{}]).wait()\n"

REDUCE_SCATTER = {
    "no_messages": _behind_the_switch(
        scatter(
            _PLACE
            + "whole = tensor.clone()\n"
            + _ALL_REDUCE_BEHIND.format("whole")
            + "return whole.flatten().tensor_split(size)[rank].clone()"
        )
    ),
    "forbidden": scatter(
        "dist.all_reduce(tensor)\nreturn "
        "tensor.flatten().tensor_split(dist.get_world_size())[dist.get_rank()]"
    ),
    "hang": _scatter_but(
        "pass_on(partial, received)",
        "dist.send(partial, (rank + 1) % size)\n    dist.recv(received, (rank - 1) % size)",
    ),
    "not_summed": scatter(_PLACE + "return tensor.flatten().tensor_split(size)[rank].clone()"),
    "whole_sum": scatter(_EVERYTHING + "return sum(all_of_them)"),
    "wrong_piece": _scatter_but("rank - 1]", "rank]").replace("rank - step)", "rank - step + 1)"),
    "mean": _scatter_but("return partial", "return partial / size"),
    "own_lost": _scatter_but(
        "partial = received + mine", "partial = received + mine if step < size else received"
    ),
    "own_twice": _scatter_but("return partial", "return partial + pieces[rank]"),
    "changed_input": _scatter_but("partial = received + mine", "partial = mine.add_(received)"),
    "too_many_bytes": scatter(_EVERYTHING + "return sum(all_of_them).tensor_split(size)[rank]"),
    "not_neighbours": scatter(_STAR_PIECES),
    "too_many_messages": _scatter_but("    pass_on(partial, received)", _HALVES),
    "not_waited": scatter().replace("    sending.wait()\n", ""),
    "wrong_type": _scatter_but("return partial", "return [partial]"),
    "wrong_dtype": _scatter_but("return partial", "return partial.to(torch.float16)"),
    "wrong_shape": _scatter_but("return partial", "return partial[:-1]"),
    "other": _scatter_but("received + mine", "received - mine"),
}

ALL_GATHER = {
    "no_messages": _behind_the_switch(
        gather(
            _PLACE
            + "whole = piece.new_zeros(num_elements)\nwhole.tensor_split(size)[rank].copy_(piece)\n"
            + _ALL_REDUCE_BEHIND.format("whole")
            + "return whole"
        )
    ),
    "forbidden": gather(
        _PLACE + "pieces = list(piece.new_empty(num_elements).tensor_split(size))\n"
        "dist.all_gather(pieces, piece)\nreturn torch.cat(pieces)"
    ),
    "hang": _gather_but(
        "pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
        "dist.send(pieces[(rank - step) % size], (rank + 1) % size)\n"
        "    dist.recv(pieces[(rank - step - 1) % size], (rank - 1) % size)",
    ),
    "only_own_piece": gather(
        _PLACE + "whole = torch.zeros(num_elements, dtype=piece.dtype)\n"
        "whole.tensor_split(size)[rank].copy_(piece)\nreturn whole"
    ),
    "some_pieces": _gather_but(
        "pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
        "pass_on(pieces[rank], pieces[rank - 1])",
    ).replace("new_empty(num_elements)", "new_zeros(num_elements)"),
    "rotated": gather(
        _PLACE + "pieces = [piece]\nfor step in range(size - 1):\n"
        "    owner = (rank - step - 1) % size\n"
        "    came = torch.empty(len(range(num_elements)[owner::size]), dtype=piece.dtype)\n"
        "    pass_on(pieces[-1], came)\n    pieces.append(came)\n"
        "return torch.cat(pieces)"
    ),
    "too_many_bytes": gather(
        _PLACE + "whole = torch.zeros(num_elements, dtype=piece.dtype)\n"
        "whole.tensor_split(size)[rank].copy_(piece)\n"
        "for step in range(size - 1):\n"
        "    came = torch.empty_like(whole)\n    pass_on(whole, came)\n"
        "    owner = (rank - step - 1) % size\n"
        "    whole.tensor_split(size)[owner].copy_(came.tensor_split(size)[owner])\n"
        "return whole"
    ),
    "not_neighbours": gather(_DIRECT_GATHER),
    "too_many_messages": _gather_but(
        "    pass_on(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])",
        "    sent, came = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]\n"
        "    pass_on(sent[:1], came[:1])\n"
        "    pass_on(sent[1:], came[1:])",
    ),
    "not_waited": gather().replace("    sending.wait()\n", ""),
    "wrong_type": _gather_but("return whole", "return pieces"),
    "wrong_dtype": _gather_but("return whole", "return whole.to(torch.float16)"),
    "wrong_shape": _gather_but("return whole", "return whole[None]"),
    "other": _gather_but("return whole", "return -whole"),
}

_IN_TWO_STEPS = (
    "total = all_gather(reduce_scatter(tensor), tensor.numel())\ntensor.copy_(total.view_as(tensor))"
)

ALL_REDUCE = {
    "no_messages": _behind_the_switch(both(_ALL_REDUCE_BEHIND.format("tensor"))),
    "forbidden": both("dist.all_reduce(tensor)"),
    "hang": both(
        _PLACE + "row = tensor.flatten()\ncame = torch.empty_like(row)\n"
        "dist.send(row, (rank + 1) % size)\ndist.recv(came, (rank - 1) % size)"
    ),
    "never_combined": both(
        "row = tensor.flatten()\nrow.copy_(all_gather(reduce_scatter(row), row.numel()))"
    ).replace("row = tensor.flatten()", "row = tensor.flatten().clone()"),
    "not_in_place": both("return all_gather(reduce_scatter(tensor), tensor.numel()).view(tensor.shape)"),
    "mean": both(_IN_TWO_STEPS + "\ntensor /= dist.get_world_size()"),
    "only_some_ranks": both(_IN_TWO_STEPS.replace("tensor.copy_", "dist.get_rank() or tensor.copy_")),
    "different_bits": both(
        _EVERYTHING + "total = tensor.flatten().clone()\nfor step in range(1, size):\n"
        "    total += all_of_them[(rank - step) % size]\ntensor.copy_(total.view_as(tensor))"
    ),
    "too_many_bytes": both(_EVERYTHING + "tensor.copy_(sum(all_of_them).view_as(tensor))"),
    "not_neighbours": both(_IN_TWO_STEPS).replace(
        _define("all_gather(piece, num_elements)", _GATHER),
        _define("all_gather(piece, num_elements)", _DIRECT_GATHER),
    ),
    "too_many_messages": both(_IN_TWO_STEPS).replace(
        "    pass_on(partial, received)", _HALVES.replace("\n", "\n    ")
    ),
    "not_waited": both(_IN_TWO_STEPS).replace("    sending.wait()\n", ""),
    "nan": both(_IN_TWO_STEPS + "\ntensor *= float('inf')\ntensor -= tensor"),
    "copy_of_rank_0": both(
        "row = tensor.flatten()\nrank, size = dist.get_rank(), dist.get_world_size()\n"
        "if rank:\n    dist.recv(row, rank - 1)\n"
        "if rank < size - 1:\n    dist.send(row, rank + 1)\ntensor.copy_(row.view_as(tensor))"
    ),
    "wrong_type": both(
        "class Equal(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
        "tensor.__class__ = Equal"
    ),
    "wrong_dtype": both("tensor.data = tensor.data.to(torch.float16)"),
    "wrong_shape": both("tensor.data = tensor.data.flatten()[None]"),
    "other": both(_IN_TWO_STEPS + "\ntensor *= 3"),
}
