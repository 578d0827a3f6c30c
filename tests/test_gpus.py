"""Which GPUs there are for ranks, and who may have them: said before anything starts. Stand-ins alone."""

import json
from types import SimpleNamespace

import pytest

import dpcourse as dc
from dpcourse.doctor import probes
from dpcourse.ranks import backends, cluster, occupied, rank, service, witness

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


# -- cards that another program has filled --------------------------------------

ASKED = {
    "--query-gpu": "GPU-aa11-00, NVIDIA A100, 81920, 1000\nGPU-bb33-00, NVIDIA A100, 81920, 81000\n",
    "--query-compute-apps": "GPU-aa11-00, 4711, python3, 79000\nGPU-bb33-00, 12, Xorg, [N/A]\n",
}


@pytest.fixture
def filled(monkeypatch):
    """nvidia-smi on a machine of two cards, of which another program has nearly all of the first."""
    answers = dict(ASKED)

    def ask(query: str, *rest: str) -> str:
        return answers.get(query.partition("=")[0], "")

    monkeypatch.setattr(cluster, "ask_nvidia_smi", ask)
    return answers


def test_a_card_that_another_program_has_filled_is_refused_and_the_program_named(filled):
    on_both = {"CUDA_VISIBLE_DEVICES": "GPU-bb33-00,GPU-aa11-00"}
    with pytest.raises(ValueError, match="GPU-aa11-00") as caught:
        occupied.check_room(on_both, num_ranks=2, rank_bytes=10**9)
    assert str(caught.value) == (
        "NVIDIA A100 (GPU-aa11-00) has 1.05 GB of its 85.90 GB free: python3 (process 4711) holds 82.84 GB; "
        "a rank there would need 1.60 GB, CUDA's own included. End what holds it, name other cards in "
        'CUDA_VISIBLE_DEVICES, ask for fewer ranks or a smaller model, or for device="cpu"'
    )
    occupied.check_room(on_both, num_ranks=2, rank_bytes=10**8)  # there is room for so much


def test_ranks_that_share_a_card_need_room_together(filled):
    on_one = {"CUDA_VISIBLE_DEVICES": "GPU-bb33-00"}
    occupied.check_room(on_one, num_ranks=4, rank_bytes=20 * 10**9)
    with pytest.raises(
        ValueError, match=r"Xorg \(process 12\) holds memory; 4 ranks there would need 90.40 GB"
    ):
        occupied.check_room(on_one, num_ranks=4, rank_bytes=22 * 10**9)


def test_what_nobody_tells_is_not_judged(filled):
    del filled["--query-compute-apps"]
    with pytest.raises(ValueError, match="processes that nvidia-smi does not show here hold the rest"):
        occupied.check_room({"CUDA_VISIBLE_DEVICES": "GPU-aa11-00"}, 1, 10**9)
    filled["--query-gpu"] = "GPU-aa11-00, NVIDIA A100, 81920, [N/A]\nMIG-1, odd line\n"
    occupied.check_room({"CUDA_VISIBLE_DEVICES": "GPU-aa11-00"}, 1, 10**12)
    occupied.check_room({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 1, 10**12)
    occupied.check_room({}, 1, 10**12)


def test_a_run_on_a_filled_card_starts_no_rank(machine, filled, monkeypatch, tmp_path):
    machine(1)
    monkeypatch.setenv("DPCOURSE_QUEUE", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"python3 .process 4711. holds 82.84 GB; 8 ranks there would need 4.8"
    ):
        dc.launch(len, ranks=8, device="cuda", backend="staged")


# -- what a fork server and a hung rank need on GPUs ----------------------------


def test_a_fork_server_asks_the_driver_s_library_for_gpus_and_begins_no_cuda_that_a_fork_could_not_use():
    assert service._environment()["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_collectives_of_nccl_are_read_from_the_recorder_that_it_keeps(monkeypatch):
    import torch

    recorders, entry = torch._C._distributed_c10d, {"record_id": 0, "profiling_name": "nccl:all_reduce"}
    monkeypatch.setattr(recorders, "_dump_fr_trace_json", lambda collectives, active: '{"version": "2.7"}')
    assert witness.recorded_entries() == []
    monkeypatch.setattr(
        recorders,
        "_dump_nccl_trace_json",
        lambda collectives, active: json.dumps({"entries": [entry]}),
        raising=False,
    )
    assert witness.recorded_entries() == [entry]


# -- links between cards --------------------------------------------------------

# As `nvidia-smi topo -m` prints it, with its underlined head: eight cards behind NVLink's switches, with two
# network cards; two cards of a workstation; four on two sockets, of which pairs are bridged.
EIGHT = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tPIX\tNODE\t0-47,96-143\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tPIX\t0-47,96-143\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-47,96-143\t0\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNODE\tNODE\t0-47,96-143\t0\t\tN/A
GPU4\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tSYS\tSYS\t48-95,144-191\t1\t\tN/A
GPU5\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tSYS\tSYS\t48-95,144-191\t1\t\tN/A
GPU6\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tSYS\tSYS\t48-95,144-191\t1\t\tN/A
GPU7\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tSYS\tSYS\t48-95,144-191\t1\t\tN/A
NIC0\tPIX\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tNODE
NIC1\tNODE\tPIX\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\tNODE\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
TWO = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-31\t\tN/A\t\tN/A
GPU1\tPHB\t X \t0-31\t\tN/A\t\tN/A
"""
FOUR_BRIDGED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\t0-15,32-47\t0
GPU1\tNV4\t X \tSYS\tSYS\t0-15,32-47\t0
GPU2\tSYS\tSYS\t X \tNV4\t16-31,48-63\t1
GPU3\tSYS\tSYS\tNV4\t X \t16-31,48-63\t1
"""


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (EIGHT, "28 pairs by NVLink (NV18)"),
        (TWO, "1 pair by PCIe, CPU (PHB)"),
        (FOUR_BRIDGED, "2 pairs by NVLink (NV4); 4 pairs by PCIe, across sockets (SYS)"),
    ],
)
def test_the_hardware_card_says_how_each_pair_of_cards_is_joined(matrix, said, monkeypatch):
    answer = SimpleNamespace(stdout=matrix, stderr="", returncode=0)
    monkeypatch.setattr(probes, "ask", lambda *command, seconds: answer)
    (found,) = probes._links()
    assert found.text == said
