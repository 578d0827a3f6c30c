"""A class graded on two Dask workers gets the same grades, also when one of them is killed on the way."""

import gc
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpcourse.grade import main
from tests.conftest import processes_marked, wait_until
from tests.submissions import LAB, one_answer, wrong

pytest.importorskip("distributed", reason="Dask is installed by make test-labs only")
pytestmark = [pytest.mark.labs, pytest.mark.long, pytest.mark.timeout(300)]

QUICK = ("--isolation", "none", "--verdicts-only", "--case-seconds", "15")
SHARDS = {"right": None, "dropped": "dropped_last", "same": "same_shard"}


class Dask:
    """A scheduler and two workers, processes of their own that carry a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.mark = folder, folder / "scheduler.json", f"dpcourse-{uuid.uuid4().hex}"
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        assert wait_until(self.file.exists, seconds=60)
        self.workers = [
            self._start("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard") for _ in "ab"
        ]
        self.address = json.loads(self.file.read_text())["address"]

    def _start(self, kind: str, *options: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", str(self.file)]
        environment = {**os.environ, "DPCOURSE_TEST_MARK": self.mark, "TMPDIR": str(self.folder)}
        with (self.folder / "dask.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *options], cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def grading(self) -> list[int]:
        """The workers below which a grader's worker is at work."""
        import psutil

        return [n for n, worker in enumerate(self.workers) if psutil.Process(worker.pid).children()]

    def close(self) -> None:
        for process in processes_marked(self.mark):
            process.kill()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    started = Dask(tmp_path)
    assert wait_until(lambda: num_workers(started.address) == 2, seconds=60)
    yield started
    started.close()


def num_workers(address: str) -> int:
    from distributed import Client

    with Client(address, timeout=30, set_as_default=False) as client:
        return len(client.nthreads())


@pytest.fixture(scope="module")
def class_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("class")
    for name, mistake in SHARDS.items():
        answers = {} if mistake is None else {"shard_batch": wrong("shard_batch", mistake)}
        (folder / f"{name}.ipynb").write_text(json.dumps(one_answer(**answers)))
    (folder / "broken.ipynb").write_text("{")
    return folder


@pytest.fixture(scope="module")
def alone(class_of: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grades that this machine gives by itself."""
    out = tmp_path_factory.mktemp("alone") / "out"
    assert main([LAB.name, str(class_of), "--out", str(out), *QUICK, "--jobs", "2"]) == 0
    return out


def test_two_workers_give_the_same_file_and_one_that_is_killed_costs_only_time(
    dask, class_of, alone, tmp_path, capsys
):
    out = tmp_path / "out"
    code = "import sys; from dpcourse.grade import main; sys.exit(main(sys.argv[1:]))"
    words = [LAB.name, str(class_of), "--out", str(out), *QUICK, "--scheduler", dask.address]
    with subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True) as batch:
        assert wait_until(lambda: len(dask.grading()) == 2, seconds=60)
        dask.workers[0].kill()
        _, said = batch.communicate(timeout=240)
    assert batch.returncode == 0, said
    assert (out / "grades.csv").read_text() == (alone / "grades.csv").read_text()
    dask.workers[1].kill()
    assert wait_until(lambda: num_workers(dask.address) == 0, seconds=60)
    assert main(words) == 2
    assert "it has no workers" in capsys.readouterr().err
    dask.close()
    assert wait_until(lambda: not processes_marked(dask.mark), seconds=20)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://", ""])
def test_nobody_at_the_address_is_said_in_one_line(address, class_of, tmp_path, monkeypatch, capsys):
    from dpcourse.grade import cluster

    monkeypatch.setattr(cluster.Cluster.__init__, "__defaults__", (1.0,))
    words = [LAB.name, str(class_of), "--out", str(tmp_path / "out"), *QUICK]
    assert main([*words, "--scheduler", address]) == 2
    gc.collect()  # what is only half made complains when it goes
    said = capsys.readouterr().err
    assert "no Dask scheduler answered" in said
    assert len(said.splitlines()) == 1
