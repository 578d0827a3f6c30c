"""Files for hubs, Binder, dev containers and machines without a network: what can be tried without Docker."""

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_wheelhouse  # noqa: E402

from dpcourse.labs import LAB_NAMES, load  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The properties that the dev container specification has, with the type of each, of those that are used here.
PROPERTIES = {
    "name": str, "build": dict, "remoteUser": str, "init": bool, "securityOpt": list, "runArgs": list,
    "hostRequirements": dict, "containerEnv": dict, "onCreateCommand": str, "postAttachCommand": str,
    "forwardPorts": list, "portsAttributes": dict,
}  # fmt: skip


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def is_supported(python: str) -> bool:
    """Whether the project runs on a Python, given as "3.11"."""
    oldest, newest = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    return int(oldest) <= int(python.split(".")[1]) < int(newest)


# -- the dev container ---------------------------------------------------------------------------


def test_the_dev_container_has_properties_of_the_specification_and_files_that_are_there():
    found = json.loads(text_of(".devcontainer/devcontainer.json"))
    assert {name: type(value) for name, value in found.items()} == {
        name: kind for name, kind in PROPERTIES.items() if name in found
    }
    assert (ROOT / ".devcontainer" / found["build"]["dockerfile"]).is_file()
    assert all(
        re.fullmatch(r"\d+([tgmk]b)?", found["hostRequirements"][key]) for key in ("memory", "storage")
    )
    assert found["onCreateCommand"].split()[0] == "make"
    assert f"\n{found['onCreateCommand'].split()[1]}:" in text_of("Makefile")
    assert [str(port) for port in found["forwardPorts"]] == list(found["portsAttributes"])


def test_the_dev_container_opens_what_the_doctor_says_that_kernel_links_need():
    found = json.loads(text_of(".devcontainer/devcontainer.json"))
    given = " ".join([*(f"--security-opt {each}" for each in found["securityOpt"]), *found["runArgs"]])
    for module in ("doctor/isolation.py", "grade/isolation.py"):
        words = "".join(re.findall(r"\"(.*)\"", text_of(f"dpcourse/{module}")))
        asked = re.findall(r"--security-opt [\w=]+", words)
        assert asked
        assert [option for option in asked if option not in given] == []


@pytest.mark.parametrize("name", [".devcontainer/Dockerfile", "hub/Dockerfile"])
def test_an_image_begins_with_a_python_that_the_course_runs_on(name):
    [python] = re.findall(r"^FROM python:(3\.\d+)-", text_of(name), re.MULTILINE)
    assert is_supported(python)


# -- Binder --------------------------------------------------------------------------------------


def test_binder_gets_a_python_that_the_course_runs_on():
    assert is_supported(re.fullmatch(r"python-(3\.\d+)\n", text_of("binder/runtime.txt"))[1])
    assert not is_supported("3.10")


@pytest.mark.parametrize("name", ["binder/postBuild", "binder/start"])
def test_a_script_of_binder_is_one_that_runs_and_stops_at_an_error(name):
    assert os.stat(ROOT / name).st_mode & stat.S_IXUSR
    assert text_of(name).startswith("#!/bin/bash\n")
    assert "set -euo pipefail" in text_of(name)


def with_a_python_that_says_its_arguments(folder: Path, fails: bool = False) -> dict[str, str]:
    python = folder / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {folder / "said"}\nexit {int(fails)}\n')
    python.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TORCH_INDEX": ""}


def test_the_build_installs_torch_from_its_index_then_the_lock_then_the_course(tmp_path):
    environ = with_a_python_that_says_its_arguments(tmp_path)
    for index in ("", "https://index.example/cpu"):
        environ["TORCH_INDEX"] = index
        subprocess.run(["binder/postBuild"], cwd=ROOT, env=environ, check=True, timeout=20)
    pin = next(line for line in text_of("requirements.lock").splitlines() if line.startswith("torch=="))
    rest = [
        "-m pip install --no-cache-dir -r requirements.lock",
        "-m pip install --no-cache-dir --no-deps --no-build-isolation -e .",
    ]
    torch = f"-m pip install --no-cache-dir --no-deps --index-url https://index.example/cpu {pin}"
    assert (tmp_path / "said").read_text().splitlines() == [*rest, torch, *rest]


def test_a_build_that_cannot_install_fails(tmp_path):
    environ = with_a_python_that_says_its_arguments(tmp_path, fails=True)
    done = subprocess.run(["binder/postBuild"], cwd=ROOT, env=environ, timeout=20)
    assert done.returncode
    assert len((tmp_path / "said").read_text().splitlines()) == 1


def test_a_start_makes_copies_and_then_becomes_what_it_was_asked_to_run(tmp_path):
    environ = with_a_python_that_says_its_arguments(tmp_path)
    done = subprocess.run(
        ["binder/start", "echo", "two words", "*"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.stdout == "two words *\n"
    assert (tmp_path / "said").read_text() == "-m dpcourse.cli lab --copies-only\n"


# -- JupyterHub ----------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch) -> Config:
    config = Config()
    monkeypatch.setenv("DPCOURSE_HUB_PASSWORD", "of the room")
    code = compile(text_of("hub/jupyterhub_config.py"), "jupyterhub_config.py", "exec")
    exec(code, {"get_config": lambda: config})
    return config


def test_a_hub_needs_a_password(monkeypatch):
    monkeypatch.delenv("DPCOURSE_HUB_PASSWORD", raising=False)
    with pytest.raises(KeyError, match="DPCOURSE_HUB_PASSWORD"):
        exec(text_of("hub/jupyterhub_config.py"), {"get_config": Config})


def test_a_hub_s_settings_fit_its_image(hub):
    image = text_of("hub/Dockerfile")
    home = re.search(r"^WORKDIR (\S+)$", image, re.MULTILINE)[1]
    spawner = hub.DockerSpawner
    assert spawner.notebook_dir == f"{home}/my"
    assert spawner.volumes["dpcourse-{username}"] == f"{home}/my"
    assert "mkdir my && chown learner:learner . my" in image  # a new volume takes the folder's owner
    assert spawner.environment["DPCOURSE_ROOM"] in spawner.volumes.values()
    assert f'CMD ["{spawner.cmd[0]}"]' in image
    assert hub.JupyterHub.active_server_limit >= 20


def test_no_solution_and_no_test_goes_into_the_image():
    copied = re.findall(r"^COPY (.*) \S+$", text_of("hub/Dockerfile"), re.MULTILINE)
    sources = [name for line in copied for name in line.split()]
    assert "labs/*.ipynb" in sources
    assert all(list(ROOT.glob(name)) for name in sources)
    assert not [name for name in sources if name in (".", "labs", "tests") or "source" in name]


# -- without a network ---------------------------------------------------------------------------


def test_torch_alone_is_taken_from_the_index_that_is_named(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("# a word\nnumpy==2.0\ntorch==2.13.0\n")
    assert make_wheelhouse.requirements(lock, "") == [(["numpy==2.0", "torch==2.13.0", "pip>=23.2"], [])]
    assert make_wheelhouse.requirements(lock, "ADDRESS") == [
        (["torch==2.13.0"], ["--no-deps", "--index-url", "ADDRESS"]),
        (["numpy==2.0", "pip>=23.2"], ["--no-deps"]),
    ]


def test_a_wheelhouse_that_is_not_whole_is_said(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise subprocess.CalledProcessError(2, "pip")

    monkeypatch.setattr(make_wheelhouse, "WHEELHOUSE", tmp_path / "wheels")
    monkeypatch.setattr(subprocess, "run", fail)
    assert make_wheelhouse.main() == 1
    assert "The wheelhouse is not whole: pip ended with 2" in capsys.readouterr().out


# -- the changelog -------------------------------------------------------------------------------


def test_the_changelog_begins_with_this_version_and_says_what_was_not_verified():
    text = text_of("CHANGELOG.md")
    assert re.search(r"^## \[(.*?)\]", text, re.MULTILINE)[1] == PROJECT["version"]
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert kinds == ["Added", "Not verified"]
    points = sum(load(name).max_points for name in LAB_NAMES)
    assert f"{points:,} points in all" in text
