"""The soak sees what a run leaves behind, and names it."""

import os
import subprocess
import uuid

from tests import soak


def test_a_process_a_file_and_shared_memory_that_are_left_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "_LEAVE_SECONDS", 0.1)
    mark = f"dpcourse-soak-{uuid.uuid4().hex}"
    before = soak.state(tmp_path)
    assert soak.left_behind(before, tmp_path, mark) == []
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "MARK": mark})
    memory = f"/dev/shm/{mark}"
    try:
        (tmp_path / "left").touch()
        open(memory, "w").close()
        told = soak.left_behind(before, tmp_path, mark)
    finally:
        process.kill()
        process.wait()
        os.unlink(memory)
    assert told == [f"process {process.pid}: sleep 600", "files: left", f"shared memory: {mark}"]


def test_a_wrong_result_and_a_kernel_that_does_not_answer_are_faults(monkeypatch):
    class Silent:
        def __init__(self, chance, mark):
            self.closed = False

        def shows(self, code, text):
            raise TimeoutError("no answer")

        def close(self):
            self.closed = True

    monkeypatch.setattr(soak, "Player", Silent)
    monkeypatch.setattr(soak, "ACTIONS", ((1, lambda player: None),))
    run = soak.Soak(seconds=5, kernels=2, seed=1)
    run.run()
    assert run.faults
    assert all("no answer" in fault for fault in run.faults)
    assert run.counts.total() == 0
