"""What the doctor finds on this machine, and what it says of machines that lack something."""

import os
import shutil
import subprocess
import sys
import threading

import pytest

import dpcourse as dc
from dpcourse.doctor import chapters, isolation, packages, probes, real_run, trial
from dpcourse.network.probe import KernelLinks
from dpcourse.ranks import cluster, service
from tests.conftest import processes_below, processes_marked, wait_until
from tests.doctors import TWO_GPUS, no_gpus_hidden_fixture, only, program_fixture, run_doctor  # noqa: F401

pytestmark = pytest.mark.long

# ---- what is attached ----


def test_gpus_links_and_a_torch_that_cannot_use_them_are_told(program, no_gpus_hidden, monkeypatch):
    program("nvidia-smi", TWO_GPUS)
    gpus, links = probes.gpus()
    assert gpus.text == "2 x Fake H100, 85.52 GB"
    assert links.text == "1 pair by NVLink (NV12)"
    assert links.figures == {"pairs": {"GPU0-GPU1": "NV12"}}
    monkeypatch.setattr(packages, "torch_cuda", lambda: None)
    assert "this build of torch cannot use them" in only(packages.torch()).advice
    assert chapters.here([gpus, *packages.torch()]).num_gpus == 0
    monkeypatch.setattr(packages, "torch_cuda", lambda: "13.0")
    assert only(packages.torch()).advice == ""
    assert chapters.here([gpus, *packages.torch()]).num_gpus == 2


def test_the_page_shows_two_gpus(program, no_gpus_hidden):
    answer = run_doctor("--quick", PATH=program("nvidia-smi", TWO_GPUS))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "2 x Fake H100, 85.52 GB" in answer.stdout
    assert "NVLink (NV12)" in answer.stdout


def test_hidden_gpus_are_told_apart_from_none(program, monkeypatch):
    program("nvidia-smi", TWO_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides them" in only(probes.gpus()).text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = only(probes.gpus())
    assert found.text.startswith("1 x Fake H100")
    assert "Two ranks need two GPUs" in found.advice


def test_a_broken_driver_is_not_taken_for_no_gpu(program, no_gpus_hidden):
    program("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    found = only(probes.gpus())
    assert "Driver/library version mismatch" in found.text
    assert "mend the NVIDIA driver" in found.advice


def test_links_that_nvidia_smi_does_not_tell_are_a_line(program, no_gpus_hidden):
    program("nvidia-smi", TWO_GPUS.replace('"topo -m")', '"topo -m") echo "Not Supported"; exit 3 ;; never)'))
    assert probes.gpus()[1].text == "could not be found out: nvidia-smi topo -m says Not Supported"


def test_the_matrix_of_four_gpus_with_a_network_card_is_read():
    matrix = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\tPXB\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\tPXB\t0-15\t0
GPU2\tSYS\tSYS\t X \tPHB\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tPHB\t X \tSYS\t16-31\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X
"""
    pairs = probes.parse_links(matrix)
    assert pairs == {
        "GPU0-GPU1": "NV4", "GPU0-GPU2": "SYS", "GPU0-GPU3": "SYS",
        "GPU1-GPU2": "SYS", "GPU1-GPU3": "SYS", "GPU2-GPU3": "PHB",
    }  # fmt: skip
    assert probes.link_text("SYS") == "PCIe, across sockets (SYS)"
    assert probes.link_text("C2C") == "C2C"


def test_what_holds_a_process_to_fewer_cores_is_named(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cluster, "num_cores", lambda: 8)
    assert only(probes.cores()).text == "8 of 64, held by this process's CPU set"
    monkeypatch.setattr(cluster, "num_cores", lambda: 1)
    found = only(probes.cores())
    assert found.text == "1 of 64, held by the container's quota"
    assert "ranks take turns" in found.advice


def test_a_containers_memory_is_told_and_what_it_holds_is_not_free(monkeypatch):
    monkeypatch.setattr(cluster, "memory_bytes", lambda: 900 * 10**6)
    monkeypatch.setattr(probes, "_container_used_bytes", lambda: 700 * 10**6)
    assert only(probes.memory()).text == (
        "900.00 MB, as much as the container may have, 200.00 MB of it free now"
    )


def test_little_room_and_a_folder_that_takes_no_file_are_told(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 99, 10**8))
    assert "keep 1.00 GB free" in only(probes.disk()).advice
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    found = only(probes.disk())
    assert "no file can be made here" in found.text
    assert "a folder where you may make files" in found.advice


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts bytes on Linux alone")
def test_the_kernels_count_is_really_read_and_a_wrong_one_refused(monkeypatch):
    assert only(probes.byte_counters()).is_there
    monkeypatch.setattr(probes, "_count_on_loopback", lambda: 99_000)
    found = only(probes.byte_counters())
    assert found.is_there is False
    assert "cannot be used" in found.advice


def test_a_system_without_counters_is_told(monkeypatch):
    monkeypatch.setattr(probes.wire, "is_available", lambda: False)
    assert "PyTorch's recorder alone" in only(probes.byte_counters()).advice


def test_a_system_the_course_does_not_run_on_is_sent_to_wsl(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    found = only(probes.system())
    assert (found.is_there, found.is_needed) == (False, True)
    assert "WSL2" in found.advice


def test_a_missing_compiler_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install g++" in only(probes.compiler()).advice


# ---- what the system allows ----


def needs_namespaces() -> None:
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode
    ):
        pytest.skip("this system refuses user namespaces")


def test_a_refusal_of_namespaces_by_the_kernel_is_told():
    """A limit of zero, in a user namespace of its own: the machine's own limit stays."""
    needs_namespaces()
    limit = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    answer = run_doctor("--quick", prefix=("unshare", "-Ur", "sh", "-c", limit, "sh"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "the system's limit on them is reached" in " ".join(answer.stdout.split())
    assert "paced: links held to a rate" in answer.stdout
    assert "08_many_machines    CPU       paced" in answer.stdout


@pytest.mark.parametrize(
    ("found", "is_there", "said"),
    [
        (KernelLinks("", True), True, "two hosts were made, with a latency"),
        (KernelLinks("", False), True, "without latency (this kernel has no netem)"),
        (KernelLinks("this user may make no namespaces", False), False, "refused: this user may make no"),
    ],
)
def test_what_the_kernel_can_do_for_links_is_said(found, is_there, said, monkeypatch):
    monkeypatch.setattr(isolation, "kernel_links", lambda: found)
    finding = only(isolation.links())
    assert finding.is_there == is_there
    assert said in finding.text
    assert is_there or "paced in user space" in finding.advice


def test_an_ordinary_user_gets_the_same_page():
    needs_namespaces()
    answer = run_doctor("--quick", prefix=("unshare", "--user", "--map-user=1000", "--map-group=1000"))
    if "unrecognized option" in answer.stderr:
        pytest.skip("this unshare cannot map to an ordinary user")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "only root can change to another user" in " ".join(answer.stdout.split())


def shell(text: str) -> str:
    """A bubblewrap that knows all the options that the grader asks for, and then does this."""
    return f"[ \"$1\" = --help ] && echo '--disable-userns --size' && exit 0\n{text}"


def test_isolation_is_tried_as_the_grader_tries_it_and_told_in_its_words(program, monkeypatch):
    monkeypatch.setattr(isolation.grading.os, "getuid", lambda: 1000)
    monkeypatch.setattr(isolation.grading.room, "needed_paths", list)
    program("bwrap", shell("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1"))
    found = only(isolation.isolation())
    with pytest.raises(ValueError, match="setting up uid map") as refused:
        isolation.grading.find("bwrap")
    assert found.text.startswith(
        "bwrap does not work here: bwrap: setting up uid map: Permission denied; this"
    )
    assert str(refused.value).partition(": ")[2] in found.text
    assert "user does not work here: only root can change to another user" in found.text
    assert found.figures == {"bwrap": False, "user": False}
    assert not found.is_there
    assert "only submissions that you trust" in found.advice


def test_a_bubblewrap_that_does_for_a_simple_room_and_not_for_the_graders_is_refused(program, monkeypatch):
    monkeypatch.setattr(isolation.grading.os, "getuid", lambda: 1000)
    program("bwrap", 'while [ "$1" != /tmp ]; do shift; done; shift; exec "$@"')
    assert "bubblewrap is too old; it needs version 0.8 or newer" in only(isolation.isolation()).text


def test_where_bubblewrap_works_nothing_is_advised(monkeypatch):
    monkeypatch.setattr(isolation, "_try", lambda kind: "" if kind == "bwrap" else "user does not work here")
    found = only(isolation.isolation())
    assert (found.text, found.advice) == ("bwrap works; user does not work here", "")


def test_without_bubblewrap_another_user_is_the_next_best(monkeypatch):
    monkeypatch.setattr(isolation.grading.room, "program", lambda: "")
    monkeypatch.setattr(isolation.grading, "_tried", lambda kind, seconds: isolation.grading.NO_ISOLATION)
    monkeypatch.setattr(isolation.grading.os, "getuid", lambda: 0)
    found = only(isolation.isolation())
    assert "bwrap does not work here: bubblewrap is not installed (Debian, Ubuntu: apt-get" in found.text
    assert found.text.endswith("; user works")
    assert found.is_there
    assert "--isolation user" in found.advice
    assert "trust" not in found.advice


def test_what_works_here_is_what_the_grader_finds():
    """On this machine, whatever it allows; nothing is left behind in the time that the doctor has."""
    found = only(isolation.isolation())
    for kind, works in found.figures.items():
        try:
            isolation.grading.find(kind)
        except ValueError:
            assert not works
        else:
            assert works


# ---- Python and packages ----


def test_a_missing_package_stops_the_course_and_another_version_does_not(monkeypatch):
    real = packages._installed
    monkeypatch.setattr(packages, "_installed", lambda name: "0.0.1" if name == "cloudpickle" else real(name))
    found = only(packages.packages())
    assert found.is_there
    assert "not as requirements.lock has them: cloudpickle 0.0.1" in found.text
    assert "make env" in found.advice
    monkeypatch.setattr(packages, "_installed", lambda name: None if name == "papermill" else real(name))
    found = only(packages.packages())
    assert (found.is_there, found.is_needed, found.text) == (False, True, "missing: papermill")


def test_many_differing_packages_are_counted_and_a_few_named(monkeypatch):
    monkeypatch.setattr(packages, "_installed", lambda name: "0.0.0")
    assert " more" in only(packages.packages()).text


def test_a_missing_torch_stops_the_course(monkeypatch):
    monkeypatch.setattr(packages, "_installed", lambda name: None)
    found = only(packages.torch())
    assert (found.is_there, found.is_needed) == (False, True)


def test_a_python_outside_the_range_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.14.1")
    found = only(packages.python())
    assert not found.is_there
    assert "3.14.1, where the course needs" in found.text
    assert "PYTHON=" in found.advice


def test_a_lock_file_counts_only_its_lines_for_this_machine():
    lock = (
        "# made\na==1\nb==2 ; python_version < '3'\n--extra-index-url x\nc==3 ; python_version > '3'  # why\n"
    )
    assert [item.name for item in packages.parse_lock(lock)] == ["a", "c"]


# ---- the real run ----


def test_a_run_that_fails_is_told_with_its_reason_and_what_to_do(monkeypatch):
    monkeypatch.setattr(trial, "__name__", "dpcourse.doctor.no_such_module")
    found = only(real_run.real_run())
    assert (found.is_there, found.is_needed) == (False, True)
    assert "No module named dpcourse.doctor.no_such_module" in found.text
    assert "make env" in found.advice


def test_why_a_run_was_refused_reaches_the_page(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ask = real_run._try_in_fresh_process
    monkeypatch.setattr(real_run, "_try_in_fresh_process", lambda device: ask("cuda"))
    found = only(real_run.real_run())
    assert found.is_there is False
    assert "2 ranks on GPUs were asked for, and 0 GPUs are visible" in found.text


def test_a_run_that_hangs_is_ended_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(real_run, "DEADLINE_SECONDS", 0.5)
    monkeypatch.setenv("DOCTOR_TEST_MARK", str(tmp_path))
    assert only(real_run.real_run()).text == "failed: no answer within 0 s"
    assert wait_until(lambda: not processes_marked(str(tmp_path)))


def trial_answer(**changes) -> dict:
    memory = {"private": 20, "anonymous_share": 100, "files": 50}
    rank = {"is_right": True, "sent_bytes": 1000, "payload_bytes": 1000, "device": "cpu", "memory": memory}
    ranks = [rank, {**rank, **changes}]
    return {
        "ranks": ranks,
        "run_seconds": 0.3,
        "load_seconds": 2.0,
        "memory": {"kernel": memory, "server": memory},
    }


def test_a_wrong_sum_stops_the_course_and_a_wrong_count_is_advice():
    assert only(real_run._run_findings(trial_answer(is_right=False))).is_there is False
    right, counted = real_run._run_findings(trial_answer(sent_bytes=1500))
    assert right.is_there
    assert counted.is_there is False
    assert "trust the recorder's" in counted.advice


def test_ranks_on_gpus_have_no_count_to_check():
    assert len(real_run._run_findings(trial_answer(sent_bytes=None))) == 1


def test_learners_are_counted_in_the_free_memory_less_what_all_share(monkeypatch):
    monkeypatch.setattr(real_run, "ROOM_FOR_A_RANK_BYTES", 200)
    memory, learners = real_run.memory_findings(trial_answer(), free_bytes=2500)
    assert memory.figures == {"kernel": 100, "server": 100, "rank": 20, "shared": 50}
    assert learners.figures["learner_bytes"] == 100 + 100 + 4 * 200
    assert learners.figures["learners"] == 2  # (0.9 * 2500 - 50) / 1000
    none = real_run.memory_findings(trial_answer(), free_bytes=900)[1]
    assert (none.is_there, none.is_needed) == (False, True)
    assert "Free some memory" in none.advice


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a rank is read from /proc")
def test_the_room_kept_for_a_rank_holds_the_largest_model():
    """The rank's own memory while gpt-small trains under DDP with every meter, looked at all the time."""
    dc.launch(int, ranks=1)
    done, peaks = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.02):
            for process in processes_below(service.current().pid):
                try:
                    peaks.append(trial.memory_of(process.pid)["private"])
                except (OSError, ValueError, trial.psutil.Error):
                    continue  # it ended while it was looked at

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        dc.train("ddp", model="gpt-small", ranks=2, steps=1, device="cpu", deadline_seconds=100)
    finally:
        done.set()
        watcher.join()
    assert 50e6 < max(peaks) <= real_run.ROOM_FOR_A_RANK_BYTES
