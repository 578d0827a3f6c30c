"""Which GPUs there are for ranks, and who may have them: said before anything starts. Stand-ins alone."""

import pytest

import dpcourse as dc
from dpcourse.ranks import backends, cluster, rank

FOUR = [
    (str(index), f"GPU-{uuid}-00", cluster.Gpu("NVIDIA A100-SXM4-80GB", 80 << 30, f"GPU-{uuid}-00"))
    for index, uuid in enumerate(("aa11", "aa22", "bb33", "cc44"))
]


@pytest.fixture
def machine(monkeypatch):
    """A machine with some of four GPUs, and a torch that can use them."""

    def put(number: int, visible: str | None = None) -> None:
        monkeypatch.setattr(cluster, "_nvidia_smi", lambda: FOUR[:number])
        monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return put


# What CUDA makes of each, as torch.cuda._parse_visible_devices and _transform_uuid_to_ordinals read it.
@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 1 , 3", [1, 3]),
        ("0,1,-1,2", [0, 1]),
        ("-1", []),
        ("", []),
        (",0", []),
        ("0,9,1", [0]),
        ("nonsense", []),
        ("NoDevFiles", []),
        ("1gpu,2nd", [1, 2]),
        ("0,1,0", []),
        ("GPU-bb33-00", [2]),
        ("GPU-b,GPU-cc", [2, 3]),
        ("GPU-aa", []),
        ("GPU-bb,GPU-aa,GPU-cc", [2]),
        ("GPU-bb,GPU-bb33", []),
        ("GPU-dd", []),
        ("bb33", []),
    ],
)
def test_cuda_visible_devices_means_what_it_means_to_cuda(visible, indices, machine):
    machine(4, visible)
    assert [gpu.uuid for gpu in cluster.gpus()] == [FOUR[index][1] for index in indices]


def test_the_same_list_read_by_torch_gives_the_same(monkeypatch):
    from torch.cuda import _parse_visible_devices, _transform_uuid_to_ordinals

    monkeypatch.setattr(cluster, "_nvidia_smi", lambda: FOUR)
    uuids = [uuid for _, uuid, _ in FOUR]
    for visible in (
        "2,0",
        "0,1,-1,2",
        "-1",
        "",
        ",0",
        "nonsense",
        "1gpu,2nd",
        "0,1,0",
        "GPU-b,GPU-cc",
        "GPU-aa",
        "3,GPU-b",
        "GPU-b,3",
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        wanted = _parse_visible_devices()
        if wanted and isinstance(wanted[0], str):
            wanted = _transform_uuid_to_ordinals(wanted, uuids)
        assert [gpu.uuid for gpu in cluster.gpus()] == [uuids[index] for index in wanted], visible


def test_ranks_take_gpus_where_each_has_one_and_share_where_they_are_asked_to(machine):
    machine(2)
    assert dc.Cluster(ranks=2).chosen_device == "cuda"
    assert dc.Cluster(ranks=2).num_gpus == 2
    assert (dc.Cluster(ranks=3).chosen_device, dc.Cluster(ranks=3).num_gpus) == ("cpu", 0)
    shared = dc.Cluster(ranks=3, share=True)
    assert (shared.chosen_device, shared.num_gpus) == ("cuda", 2)
    assert backends.place(shared, None, None, None)[1].name == "staged"
    placed, backend = backends.place(None, 4, None, "staged")
    assert (placed.chosen_device, placed.num_gpus, backend.name) == ("cuda", 2, "staged")
    assert backends.place(None, 4, "cpu", "staged")[0].num_gpus == 0


def test_without_a_gpu_ranks_that_share_are_on_the_cpu(machine):
    machine(0)
    placed, backend = backends.place(None, 4, None, "staged")
    assert (placed.chosen_device, backend.name) == ("cpu", "staged")


@pytest.mark.parametrize(
    ("asked", "number", "visible", "said"),
    [
        (
            {"ranks": 2},
            1,
            None,
            r"2 ranks .* and 1 GPUs are visible; .* Ask for 1 rank, for backend=\"staged\"",
        ),
        (
            {"ranks": 1},
            4,
            "-1",
            r"and 0 GPUs are visible \(CUDA_VISIBLE_DEVICES is '-1'\); .* Ask for device=",
        ),
        ({"ranks": 2}, 4, "3,GPU-b", r"and 1 GPUs are visible \(CUDA_VISIBLE_DEVICES is '3,GPU-b'\)"),
        (
            {"ranks": 2, "share": True},
            0,
            None,
            r"2 ranks on GPUs .*, and 0 GPUs are visible; .* device=\"cpu\"",
        ),
        ({"ranks": 2, "share": 1}, 2, None, r"share=1: give True or False"),
    ],
)
def test_what_is_not_there_is_said_before_anything_starts(asked, number, visible, said, machine, no_process):
    machine(number, visible)
    with pytest.raises(ValueError, match=said):
        dc.train("ddp", cluster=dc.Cluster(device="cuda", **asked))


def test_a_cluster_that_shares_takes_no_other_backend_and_no_emulated_hosts(machine, no_process):
    machine(1)
    with pytest.raises(ValueError, match=r"backend='nccl' was asked for on a cluster with share=True.*leave"):
        dc.train("ddp", cluster=dc.Cluster(ranks=2, share=True), backend="nccl")
    with pytest.raises(ValueError, match=r"share=True puts several ranks on a GPU, and emulated hosts"):
        dc.Cluster(hosts=2, share=True, links="paced")


def test_ranks_take_turns_at_the_cards_that_there_are(monkeypatch):
    import torch

    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "init", lambda: taken.append("begun"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local_rank in range(3):
        rank.take_gpu(local_rank)
    assert taken == [0, "begun", 1, "begun", 0, "begun"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        RuntimeError, match=r"sees no GPU here, though nvidia-smi lists some; bring the driver"
    ):
        rank.take_gpu(0)
