"""Many learners on one machine: who has which card, who waits for it, in which order."""

import pytest

from dpcourse.ranks import cluster

CUT_IN_SLICES = """\
case "$*" in
  -L)
    echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)"
    echo "  MIG 1g.5gb      Device  0: (UUID: MIG-11)"
    echo "  MIG 2g.10gb     Device  1: (UUID: MIG-22)"
    echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)" ;;
  *) echo "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960"; echo "1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960" ;;
esac
"""


@pytest.fixture(name="nvidia_smi")
def nvidia_smi_fixture(tmp_path, monkeypatch):
    """Put a nvidia-smi on PATH that says what it is given to say."""

    def put(lines: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        cluster._nvidia_smi.cache_clear()

    yield put
    cluster._nvidia_smi.cache_clear()


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["GPU-bb"]),
        ("GPU-b", ["GPU-bb"]),
        ("MIG-22", ["MIG-22"]),
        ("MIG-11,MIG-22", ["MIG-11"]),  # CUDA gives a process one slice at most
        ("0", ["MIG-11"]),  # and a card that is cut means its first slice
        ("GPU-aa", ["MIG-11"]),
        ("MIG-33", []),
        (None, ["MIG-11"]),
    ],
)
def test_a_card_has_one_name_however_it_was_asked_for(visible, uuids, nvidia_smi, monkeypatch):
    nvidia_smi(CUT_IN_SLICES)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in cluster.gpus()] == uuids


def test_a_slice_says_what_it_is_cut_from_and_how_large_it_is(nvidia_smi, monkeypatch):
    nvidia_smi(CUT_IN_SLICES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-22")
    assert cluster.gpus() == (cluster.Gpu("NVIDIA A100-SXM4-40GB MIG 2g.10gb", 10 << 30, "MIG-22"),)
