"""The counters of a GPU's links, read from a stand-in for NVML, so that no such GPU is needed."""

import sys
from types import SimpleNamespace

import pytest

from dpcourse.ledger import LINK_COUNT, Transfer
from dpcourse.measure.gpu_links import GpuLinkCounter

NVLINK, PCIE = "NVLink, data sent", "PCIe, all that was sent"


class NVMLError(Exception):
    """As pynvml has one."""


class Nvml:
    """A GPU whose NVLink has sent 3 KiB and whose PCIe 500 bytes, and more at each reading."""

    NVML_SUCCESS, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 0, 138, 197

    def __init__(self, broken=()):
        self.sent, self.broken, self.asked = {138: 3, 197: 500}, broken, []

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert handle == "handle"
        self.sent[fields[0]] += 7
        value = SimpleNamespace(ullVal=self.sent[fields[0]])
        return [SimpleNamespace(nvmlReturn=fields[0] in self.broken and 3, value=value)]


def counter(monkeypatch, nvml):
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return GpuLinkCounter("GPU-1")


def test_nvlink_counts_kibibytes_and_pcie_bytes_from_one_reading_to_the_next(monkeypatch):
    nvml = Nvml()
    links = counter(monkeypatch, nvml)
    assert links.sent_since_last() == {NVLINK: 7 * 1024, PCIE: 7}
    nvml.sent[138] += 100
    assert links.sent_since_last() == {NVLINK: 107 * 1024, PCIE: 7}
    assert nvml.asked == ["GPU-1"]


def test_a_link_that_the_gpu_does_not_count_is_left_out(monkeypatch):
    assert counter(monkeypatch, Nvml(broken=(138,))).sent_since_last() == {PCIE: 7}


def test_a_card_that_nvml_does_not_know_is_not_counted(monkeypatch):
    nvml = Nvml()
    for method in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetHandleByUUID"):
        monkeypatch.setattr(nvml, method, refuse)
        assert counter(monkeypatch, nvml).sent_since_last() == {}


def refuse(*arguments):
    raise NVMLError("Not Found")


def test_without_the_package_or_the_driver_there_is_no_count_and_other_errors_are_not_hidden(monkeypatch):
    assert counter(monkeypatch, None).sent_since_last() == {}
    nvml = Nvml()
    for error in (NVMLError("no driver"), OSError("no library")):
        monkeypatch.setattr(nvml, "nvmlInit", lambda error=error: (_ for _ in ()).throw(error))
        assert counter(monkeypatch, nvml).sent_since_last() == {}
    monkeypatch.setattr(nvml, "nvmlInit", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        counter(monkeypatch, nvml)


def test_the_table_says_what_each_link_counts_and_takes_it_for_no_collective():
    from tests.test_run import make_run, replace

    run = make_run(ranks=2)
    first = run.records[0]
    counted = Transfer(LINK_COUNT, NVLINK, (0, 1), 0, 2048, "backward", 0)
    run = replace(run, records=(replace(first, transfers=(*first.transfers, counted)), *run.records[1:]))
    assert ["backward", "sent by the GPU", NVLINK, "2.05 kB", None, "counted by its driver"] in [
        list(row) for row in run.traffic.table().rows
    ]
    assert run.traffic.is_exact()
    assert run.traffic.num_collectives() == make_run(ranks=2).traffic.num_collectives()
