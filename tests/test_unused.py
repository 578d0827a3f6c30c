"""Parameters that get no gradient: skipped, or given zeros, or refused, each strategy in its own way."""

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.ledger import select, total
from dpcourse.request import make_request
from tests.features import possible


class Spare(nn.Module):
    """A layer that is trained, and that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(6, 7), nn.Linear(3, 3), nn.Linear(7, 4)

    def forward(self, inputs):
        return self.last(torch.relu(self.first(inputs)))


class Pair(Spare):
    def forward(self, inputs):
        return super().forward(inputs), inputs


class Detached(Spare):
    def forward(self, inputs):
        return super().forward(inputs).detach()


def classes(batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, 6, generator=generator), torch.randint(
        0, 4, (batch_size,), generator=generator
    )


LOOKING = {"find_unused_parameters": True}
CASES = {
    "single": ("single", {"recipe": "mixed-adam"}),
    "dp": ("dp", {}),
    "ddp": ("ddp", {**LOOKING, "recipe": "mixed-adam"}),
    "ddp-static": ("ddp", {"static_graph": True}),
    "ddp-view": ("ddp", {**LOOKING, "gradient_as_bucket_view": True}),
    "zero1": ("zero1", LOOKING),
    "fsdp1": ("fsdp1", {}),
    "fsdp2": ("fsdp2", {"recipe": "mixed-adam"}),
    "fsdp2-zeros": ("fsdp2", {"reduce_scatter_unused_params": True}),
    "naive": ("scratch-naive-ddp", {}),
    "flat": ("scratch-flat-ddp", {}),
    "buckets": ("scratch-ddp", {}),
    "buckets-looking": ("scratch-ddp", LOOKING),
    "scratch-zero1": ("scratch-zero1", {}),
    "scratch-zero1-looking": ("scratch-zero1", LOOKING),
    "scratch-zero2": ("scratch-zero2", LOOKING),
    "scratch-fsdp": ("scratch-fsdp", {}),
}


@pytest.mark.parametrize("name", possible(CASES))
def test_what_is_held_and_moved_is_exact_with_an_unused_layer(name):
    strategy, options = CASES[name]
    run = dc.train(strategy, model=Spare, batch=classes, steps=1, **options)
    assert run.memory.is_exact(), str(run.memory.table())
    assert run.traffic.is_exact(), str(run.traffic.table())


def test_an_unused_layer_has_no_states_where_it_is_skipped_and_has_some_where_it_gets_zeros():
    def states(strategy, **options):
        held = make_request(strategy, options, Spare, classes, 2, optimizer="momentum").expected_memory()
        return total(select(held, owner="optimizer", unit="spare", phase="step", rank=0))

    assert states("ddp", **LOOKING) == states("scratch-naive-ddp") == 0
    assert states("dp") == states("scratch-flat-ddp") == 4 * (3 * 3 + 3)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_an_unused_layer_that_ddp_does_not_look_for_is_refused_before_a_process_starts(strategy, no_process):
    with pytest.raises(ValueError, match=r"spare.weight and 1 more got no gradient.*find_unused_parameters"):
        dc.train(strategy, model=Spare, batch=classes)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (Pair, TypeError, "forward returned tuple.*let forward return the predictions alone"),
        (Detached, ValueError, r"the loss depends on no parameter that is trained.*without detach\(\)"),
    ],
)
def test_an_output_that_gives_no_gradients_is_refused_before_a_process_starts(
    model, kind, message, no_process
):
    with pytest.raises(kind, match=message):
        dc.train("ddp", model=model, batch=classes)
