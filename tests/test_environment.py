"""pyproject.toml, environment.yml and requirements.lock agree, and each check is shown to catch a drift."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
CONDA = (ROOT / "environment.yml").read_text()
LOCK = (ROOT / "requirements.lock").read_text()
# What some tests need, by the extra that names it.
BESIDE = {name: (ROOT / "tests" / name / "requirements.lock").read_text() for name in ("browser", "cluster")}


def declared(project: str) -> set[str]:
    """What pyproject.toml asks for, tools for development included, in one spelling."""
    table = tomllib.loads(project)["project"]
    return {str(Requirement(text)) for text in table["dependencies"] + table["optional-dependencies"]["dev"]}


def declared_for_conda(conda: str) -> set[str]:
    (pip,) = (item["pip"] for item in yaml.safe_load(conda)["dependencies"] if isinstance(item, dict))
    return {str(Requirement(text)) for text in pip if not text.startswith("-")}


def locked(lock: str) -> list[Requirement]:
    return [Requirement(line) for line in lock.splitlines() if line and not line.startswith("#")]


def drift(project: str, conda: str) -> set[str]:
    return declared(project) ^ declared_for_conda(conda)


def unlocked(project: str, lock: str) -> list[str]:
    """Dependencies that the lock lacks, or holds in a version out of range."""
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in locked(lock)}
    found = []
    for requirement in map(Requirement, declared(project)):
        version = versions.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version):
            found.append(f"{requirement} (locked: {version})")
    return found


def test_conda_users_get_the_same_dependencies():
    assert drift(PROJECT, CONDA) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("      - tqdm>=4.66\n", ""),
        ("torch>=2.11", "torch>=2.10"),
        ("      - -e .", "      - pandas\n      - -e ."),
    ],
)
def test_a_drift_between_the_two_is_caught(old, new):
    assert old in CONDA
    assert drift(PROJECT, CONDA.replace(old, new)) != set()


def test_every_dependency_is_locked_in_a_version_within_its_range():
    assert unlocked(PROJECT, LOCK) == []


@pytest.mark.parametrize(
    ("pattern", "new"), [(r"^tqdm==.*\n", ""), (r"^tqdm==.*", "tqdm==4.1"), (r"^torch==.*", "torch==2.16.0")]
)
def test_a_lock_that_lags_behind_is_caught(pattern, new):
    lock = re.sub(pattern, new, LOCK, flags=re.MULTILINE)
    assert lock != LOCK
    assert len(unlocked(PROJECT, lock)) == 1


@pytest.mark.parametrize("extra", BESIDE)
def test_what_only_some_tests_need_is_locked_apart_so_that_no_learner_downloads_it(extra):
    wanted = tomllib.loads(PROJECT)["project"]["optional-dependencies"][extra]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in locked(BESIDE[extra])}
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[requirement.name])
    assert not versions.keys() & {pin.name for pin in locked(LOCK)}


def test_the_lock_pins_exact_versions_of_torch_and_all_else():
    pins = locked(LOCK)
    assert "torch==2.13.0" in {str(pin) for pin in pins}
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in pins)


def test_the_lock_leaves_torchs_gpu_libraries_to_torch_and_names_no_address():
    assert [pin.name for pin in locked(LOCK) if re.match(r"nvidia|cuda|triton", pin.name)] == []
    for text in (LOCK, *BESIDE.values(), CONDA, PROJECT):
        assert "://" not in text


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_for_each_python_and_system_a_package_has_one_version(python, system):
    where = {
        "python_version": python[:4],
        "python_full_version": python,
        "sys_platform": system,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    names = [pin.name for pin in locked(LOCK) if pin.marker is None or pin.marker.evaluate(where)]
    assert len(names) == len(set(names))
    assert {"torch", "numpy", "networkx", "jupyterlab"} <= set(names)


def test_python_versions_agree_everywhere():
    project = tomllib.loads(PROJECT)["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    assert "python>=3.11,<3.14" in yaml.safe_load(CONDA)["dependencies"]
    assert (3, 11) <= sys.version_info[:2] < (3, 14)
