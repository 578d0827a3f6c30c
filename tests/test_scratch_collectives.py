"""Collectives made of sends against torch's own: every length, dtype, group and number of ranks."""

import inspect
import types

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.scratch import halving_doubling, messages, ring, star, work
from dpcourse.scratch.announce import announced, is_announced, listen

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)


def own_numbers(length, dtype, rank):
    """Whole numbers up to 10, another row on each rank: their sums are exact in every dtype, in any order."""
    return ((7 * torch.arange(length) + 3 * rank) % 11).to(dtype)


# -- what is compared -----------------------------------------------------


def in_place(collective):
    def run(tensor, group):
        result = tensor.clone()
        collective(result, group=group)
        return result

    return run


def ring_gather(tensor, group):
    piece = tensor.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
    return ring.all_gather(piece, group, num_elements=tensor.numel())


def work_gather(tensor, group):
    piece = tensor.tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
    return work.start_all_gather(piece, group, num_elements=tensor.numel()).wait()


def star_scatter(tensor, group):
    pieces = list(tensor.tensor_split(dist.get_world_size(group)))
    piece = torch.empty_like(pieces[dist.get_rank(group)])
    star.scatter(piece, pieces if dist.get_rank(group) == 0 else None, group=group)
    return piece


def star_gather(tensor, group):
    pieces = [torch.empty_like(piece) for piece in tensor.tensor_split(dist.get_world_size(group))]
    rank = dist.get_rank(group)
    piece = tensor.tensor_split(dist.get_world_size(group))[rank]
    star.gather(piece, pieces if rank == 0 else None, group=group)
    return torch.cat(pieces) if rank == 0 else tensor


COLLECTIVES = {
    "reduce_scatter": {
        "ring": lambda tensor, group: ring.reduce_scatter(tensor, group),
        "work": lambda tensor, group: work.start_reduce_scatter(tensor, group).wait(),
    },
    "all_gather": {"ring": ring_gather, "work": work_gather},
    "all_reduce": {
        "ring": in_place(ring.all_reduce),
        "halving and doubling": in_place(halving_doubling.all_reduce),
        "star": in_place(star.all_reduce),
    },
    "broadcast": {"ring": in_place(ring.broadcast), "star": in_place(star.broadcast)},
    "reduce": {"star": in_place(star.reduce)},
    "scatter": {"star": star_scatter},
    "gather": {"star": star_gather},
}


def expected(collective, tensor, group):
    """What torch's own collectives give for it. A piece is one of tensor_split's."""
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_process_group_ranks(group)[0]
    result = tensor.clone()
    if collective in ("reduce_scatter", "all_reduce"):
        dist.all_reduce(result, group=group)
        return result.tensor_split(num_ranks)[rank] if collective == "reduce_scatter" else result
    if collective in ("broadcast", "scatter"):
        dist.broadcast(result, root, group=group)
        return result.tensor_split(num_ranks)[rank] if collective == "scatter" else result
    if collective == "reduce":
        dist.all_reduce(result, group=group)
        return result if rank == 0 else tensor
    rows = [torch.empty_like(tensor) for _ in range(num_ranks)]
    dist.all_gather(rows, tensor, group=group)
    whole = torch.cat([row.tensor_split(num_ranks)[k] for k, row in enumerate(rows)])
    return whole if collective == "all_gather" or rank == 0 else tensor


def differences(collectives, lengths, dtypes=(torch.float32,), group=None):
    """In a rank: names of all that differs from torch's."""
    found = []
    for dtype in dtypes:
        for length in lengths:
            tensor = own_numbers(length, dtype, dist.get_rank())
            for collective, ways in collectives.items():
                wanted = expected(collective, tensor, group)
                for way, function in ways.items():
                    given = function(tensor, group)
                    if given.dtype != dtype or not torch.equal(given, wanted):
                        found.append(f"{way} {collective} of {length} {dtype}: {given} for {wanted}")
            assert torch.equal(tensor, own_numbers(length, dtype, dist.get_rank()))  # nobody changed it
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_collective_gives_what_torch_s_gives(ranks):
    lengths = sorted({0, 1, 2, ranks - 1, ranks, ranks + 1, 1000, 1001})
    assert dc.launch(differences, COLLECTIVES, lengths, ranks=ranks) == [[]] * ranks


def test_the_dtype_does_not_matter():
    assert dc.launch(differences, COLLECTIVES, [1, 1001], DTYPES, ranks=3) == [[]] * 3


def in_two_groups():
    groups = [dist.new_group([0, 2]), dist.new_group([4, 1, 3])]
    mine = groups[0] if dist.get_rank() in (0, 2) else groups[1]
    other = groups[1] if mine is groups[0] else groups[0]
    with pytest.raises(ValueError, match=rf"rank {dist.get_rank()} called .* only the ranks that new_group"):
        ring.all_reduce(torch.ones(1), other)
    return differences(COLLECTIVES, [0, 2, 7, 1000], group=mine)


def test_two_groups_work_at_once_and_a_stranger_is_refused():
    assert dc.launch(in_two_groups, ranks=5) == [[]] * 5


def odd_shapes():
    """Tensors that do not lie in a row, or have no dimension, or need a gradient."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    total = num_ranks * (num_ranks - 1) / 2
    for all_reduce in (ring.all_reduce, halving_doubling.all_reduce, star.all_reduce):
        whole = torch.full((4, 6), float(rank))
        all_reduce(whole[:, ::2].T)
        assert torch.equal(whole[:, ::2], torch.full((4, 3), total))
        assert torch.equal(whole[:, 1::2], torch.full((4, 3), float(rank)))
        scalar = torch.tensor(rank)
        all_reduce(scalar)
        assert scalar.item() == total
        weight = torch.nn.Parameter(torch.full((3,), float(rank)))
        all_reduce(weight)
        assert weight.tolist() == [total] * 3
    for broadcast in (ring.broadcast, star.broadcast):
        whole = torch.full((4, 6), float(rank))
        broadcast(whole[:, ::2], 1)
        assert torch.equal(whole[:, ::2], torch.ones(4, 3))
    added = torch.full((2,), float(rank))
    star.reduce(added, main=2)
    assert added.tolist() == [total if rank == 2 else rank] * 2
    rows = [torch.empty(1) for _ in range(num_ranks)] if rank == 1 else None
    star.gather(torch.tensor([float(rank)]), rows, main=1)
    star.scatter(piece := torch.empty(1), rows, main=1)
    assert piece.item() == rank
    assert ring.reduce_scatter(torch.ones(2, 3)).tolist() == [num_ranks] * 2
    return True


def test_a_view_a_scalar_and_a_parameter_are_reduced_in_place():
    assert all(dc.launch(odd_shapes, ranks=3))


# -- the comparison refuses wrong answers -----------------------------------


def with_change(module, old, new):
    """A copy of a module with one change in its text."""
    source = inspect.getsource(module)
    assert source.count(old) == 1
    changed = types.ModuleType("changed")
    exec(compile(source.replace(old, new), "changed", "exec"), changed.__dict__)
    return changed


RING_MISTAKES = {
    "adds a neighbour's piece": ("mine = pieces[(rank - step)", "mine = pieces[(rank - step + 1)"),
    "one round too few": ("range(2, num_ranks + 1)", "range(2, num_ranks)"),
    "one round too many": ("range(2, num_ranks + 1)", "range(2, num_ranks + 2)"),
    "starts with the wrong piece": ("partial = pieces[rank - 1]", "partial = pieces[rank]"),
    "adds twice": ("mine, out=received)", "mine, out=received).add_(mine)"),
    "does not add": ("combine(received, mine, out=received)", "received"),
    "gathers one round too few": ("range(num_ranks - 1)", "range(num_ranks - 2)"),
    "gathers into the wrong piece": ("(rank - step - 1)", "(rank - step - 2)"),
    "forgets its own piece": ("pieces[rank].copy_(piece.flatten())", "pass"),
}  # fmt: skip
HALVING_MISTAKES = {
    "keeps the wrong half": ("(upper, lower) if rank & distance", "(lower, upper) if rank & distance"),
    "does not add": ("kept += received", "kept = received"),
    "does not double": ("in reversed(steps)", "in steps[:0]"),
    "doubles in the wrong order": ("in reversed(steps)", "in steps"),
    "forgets who folded in": ("row += receive", "receive"),
}


def found_in(mistakes):
    """In a rank: which mistakes the comparison finds, each on a length that keeps all messages equal."""
    found = {}
    for name, (module, old, new) in mistakes.items():
        changed = with_change(module, old, new)
        ways = {"all_reduce": {"changed": in_place(changed.all_reduce)}}
        if module is ring:
            ways["reduce_scatter"] = {"changed": lambda t, group, its=changed: its.reduce_scatter(t, group)}
        found[name] = bool(differences(ways, [8 * dist.get_world_size()]))
    return found


WRONG = [(ring, RING_MISTAKES, 4), (halving_doubling, HALVING_MISTAKES, 5)]


@pytest.mark.parametrize(("module", "mistakes", "ranks"), WRONG)
def test_the_comparison_refuses_wrong_rings_and_wrong_halves(module, mistakes, ranks):
    named = {name: (module, old, new) for name, (old, new) in mistakes.items()}
    results = dc.launch(found_in, named, ranks=ranks)
    assert {name for name in mistakes if any(found[name] for found in results)} == set(mistakes)


# -- several at once ------------------------------------------------------


def under_way():
    """Start many, of unlike sizes, with a ring between; wait in another order."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    inputs = [own_numbers(length, torch.float32, rank) for length in (1001, 3, 0, 200_000)]
    sums = [work.start_reduce_scatter(tensor) for tensor in inputs]
    gathers = [work.start_all_gather(tensor) for tensor in inputs]
    between = torch.full((100_000,), float(rank))
    ring.all_reduce(between)
    assert between.eq(num_ranks * (num_ranks - 1) / 2).all()
    for index in (2, 0, 3, 1):
        rows = [own_numbers(len(inputs[index]), torch.float32, other) for other in range(num_ranks)]
        assert torch.equal(gathers[index].wait(), torch.cat(rows))
        assert torch.equal(sums[index].wait(), sum(rows).tensor_split(num_ranks)[rank])
        assert sums[index].wait() is sums[index].wait()
    buffer = torch.full((num_ranks, 5), -1.0)
    buffer[rank] = rank
    assert (
        work.start_all_gather(buffer[rank], into=buffer.view(-1)).wait().view(num_ranks, 5)[-1, 0]
        == num_ranks - 1
    )
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_several_under_way_never_mix(ranks):
    assert all(dc.launch(under_way, ranks=ranks))


def large():
    """16 MB in each direction, far more than sockets hold: who sent before it received would hang."""
    tensor = torch.ones(4_000_000)
    ring.all_reduce(tensor)
    halving_doubling.all_reduce(tensor)
    star.all_reduce(tensor)
    ring.broadcast(tensor)
    return work.start_reduce_scatter(tensor).wait().eq(8).all().item()


def test_large_messages_do_not_hang():
    assert dc.launch(large, ranks=2) == [False, False]


# -- announcements and refusals ---------------------------------------------


def heard(rank_of_group):
    group = dist.new_group(rank_of_group)
    found = []
    tensor = torch.ones(10, dtype=torch.bfloat16)
    with listen(lambda *what: found.append(what)):
        ring.all_reduce(tensor, group, unit="layer")
        halving_doubling.all_reduce(tensor, group)
        ring.reduce_scatter(tensor, group)
        work.start_all_gather(tensor, group).wait()
        star_gather(tensor, group)
        with announced("all_reduce", 7, group, "outer"):
            assert is_announced()
            ring.all_reduce(tensor, group)
    ring.all_reduce(tensor, group)  # nobody listens
    assert not is_announced()
    return found


def test_each_collective_is_announced_once_whatever_it_is_made_of():
    ranks = (0, 2)
    found = dc.launch(
        lambda: heard([0, 2]) if dist.get_rank() != 1 else dist.new_group([0, 2]) and [], ranks=3
    )
    assert found[0] == found[2]
    assert found[0] == [
        ("all_reduce", "bfloat16", ranks, 20, "layer"),
        ("all_reduce", "bfloat16", ranks, 20, ""),
        ("reduce_scatter", "bfloat16", ranks, 20, ""),
        ("all_gather", "bfloat16", ranks, 40, ""),
        ("gather", "bfloat16", ranks, 20, ""),
        ("all_reduce", "", ranks, 7, "outer"),
    ]


def failing():
    with pytest.raises(RuntimeError, match="inside"), announced("all_reduce", 4):
        raise RuntimeError("inside")
    return is_announced()


def test_an_error_inside_closes_the_announcement():
    assert dc.launch(failing, ranks=1) == [False]


def timeline():
    from torch.profiler import profile

    with profile() as profiler:
        ring.all_reduce(torch.ones(4))
    return [event.name for event in profiler.events() if event.name.startswith("scratch: ")]


def test_a_profiler_shows_a_collective_by_its_name():
    assert "scratch: all_reduce" in dc.launch(timeline, ranks=2)[0]


def refusals():
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    with pytest.raises(ValueError, match=rf"rank {rank} of 2 has 3 of 6 numbers, .* a piece of 2; cut the"):
        ring.all_gather(torch.ones(2), num_elements=6)
    if rank == 0:
        with pytest.raises(ValueError, match="one piece for each of the 2 ranks, and was given none"):
            star.scatter(torch.ones(2))
        with pytest.raises(ValueError, match="one piece for each of the 2 ranks, and was given 1"):
            star.gather(torch.ones(2), [torch.ones(2)])
    assert messages.place_in() == (rank, num_ranks)
    return True


def test_pieces_that_do_not_fit_are_refused_before_a_message_is_sent():
    assert all(dc.launch(refusals, ranks=2))


def _left_alone():
    if dist.get_rank():
        ring.all_reduce(torch.ones(1000))


def test_a_rank_that_its_neighbour_has_left_is_named_with_its_line_before_the_deadline():
    with pytest.raises(dc.RankError, match=r"rank 0 finished .*rank 1 waits for a peer") as caught:
        dc.launch(_left_alone, deadline_seconds=50)
    assert caught.value.kind == "hang"
    assert "ring.all_reduce(torch.ones(1000))" in str(caught.value)
