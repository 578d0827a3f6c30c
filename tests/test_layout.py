"""A model as integers, and DDP's buckets as a pure function of them, against the installed torch."""

import pytest

from dpcourse.layout import Layout, Parameter, assign_buckets, ddp_buckets, layout_of, unit_of


def resnet18() -> Layout:
    """The 62 parameters of torchvision's ResNet-18, in the order in which it defines them."""
    parameters = [*convolution("conv1", "bn1", 3, 64, 7)]
    inputs = 64
    for stage, outputs in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            parameters += convolution(f"{name}.conv1", f"{name}.bn1", inputs, outputs, 3)
            parameters += convolution(f"{name}.conv2", f"{name}.bn2", outputs, outputs, 3)
            if inputs != outputs:
                parameters += convolution(f"{name}.downsample.0", f"{name}.downsample.1", inputs, outputs, 1)
            inputs = outputs
    return Layout((*parameters, Parameter("fc.weight", (1000, 512)), Parameter("fc.bias", (1000,))))


def convolution(conv, norm, inputs, outputs, size):
    return [
        Parameter(f"{conv}.weight", (outputs, inputs, size, size)),
        Parameter(f"{norm}.weight", (outputs,)),
        Parameter(f"{norm}.bias", (outputs,)),
    ]


def sizes(buckets):
    return [bucket.num_bytes for bucket in buckets]


def test_resnet18_buckets_are_those_reported_from_the_second_step():
    assert resnet18().num_params == 11_689_512
    assert sizes(ddp_buckets(resnet18(), step=2)) == [2_052_000, 28_852_224, 15_853_824]
    assert sizes(ddp_buckets(resnet18(), step=9)) == [2_052_000, 28_852_224, 15_853_824]


def test_the_first_step_reduces_one_single_bucket():
    assert sizes(ddp_buckets(resnet18(), step=1)) == [46_758_048]


def test_an_explicit_cap_of_25_drops_the_small_first_bucket():
    assert sizes(ddp_buckets(resnet18(), step=2, bucket_cap_mb=25))[0] > 26_214_400


def test_a_static_graph_rebuilds_at_the_third_step():
    assert len(ddp_buckets(resnet18(), step=2, static_graph=True)) == 1
    assert sizes(ddp_buckets(resnet18(), step=3, static_graph=True))[0] == 2_052_000


def test_find_unused_parameters_buckets_from_the_start_and_never_rebuilds():
    first = sizes(ddp_buckets(resnet18(), step=1, find_unused_parameters=True))
    assert len(first) > 1
    assert first == sizes(ddp_buckets(resnet18(), step=5, find_unused_parameters=True))


def test_a_bucket_closes_after_passing_its_cap():
    parameters = [Parameter(name, (n,)) for name, n in (("a", 10), ("b", 10), ("c", 1), ("d", 1))]
    assert sizes(assign_buckets(parameters, [44, 4])) == [80, 4, 4]


def test_each_dtype_fills_buckets_of_its_own():
    parameters = [Parameter("a", (4,)), Parameter("b", (4,), "bfloat16"), Parameter("c", (4,))]
    assert sorted(sizes(assign_buckets(parameters, [10**9]))) == [8, 32]


def test_frozen_parameters_are_in_no_bucket():
    layout = Layout((Parameter("a.weight", (4,), is_trainable=False), Parameter("b.weight", (2,))))
    assert (layout.parameter_bytes, layout.gradient_bytes) == (24, 8)
    assert sizes(ddp_buckets(layout, step=2)) == [8]


@pytest.mark.parametrize("limits", [[2**62], [1 << 20, 25 << 20], [1 << 20], [100_000], [1]])
def test_buckets_are_those_that_the_installed_torch_assigns(limits):
    import torch
    import torch.distributed as dist

    layout = resnet18()
    tensors = [torch.empty(parameter.shape) for parameter in layout.parameters]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    ours = assign_buckets(layout.parameters, limits)
    names = [parameter.name for parameter in layout.parameters]
    assert [[names[i] for i in bucket] for bucket in indices] == [
        [parameter.name for parameter in bucket.parameters] for bucket in ours
    ]


def test_a_unit_is_the_repeated_block_or_the_top_level_module():
    assert unit_of("blocks.3.attention.qkv.weight") == "blocks.3"
    assert unit_of("layers.0.weight") == "layers.0"
    assert unit_of("head.weight") == "head"
    assert unit_of("scale") == "scale"


def test_a_layout_read_from_a_module_counts_a_shared_table_once():
    import torch.nn as nn

    module = nn.ModuleDict({"embedding": nn.Embedding(10, 4), "norm": nn.BatchNorm1d(4)})
    module["head"] = nn.Linear(4, 10, bias=False)
    module["head"].weight = module["embedding"].weight
    module["norm"].weight.requires_grad_(False)
    layout = layout_of(module)
    assert layout.num_params == 40 + 4 + 4
    assert layout.shared == (("head.weight", "embedding.weight"),)
    assert layout.gradient_bytes == 4 * (40 + 4)
    assert [(buffer.name, buffer.dtype) for buffer in layout.buffers] == [
        ("norm.running_mean", "float32"),
        ("norm.running_var", "float32"),
        ("norm.num_batches_tracked", "int64"),
    ]
    assert layout.buffer_bytes == 16 + 16 + 8
