"""What `import dpcourse` gives, and what it costs."""

import subprocess
import sys

import pytest

import dpcourse as dc


def test_each_public_name_is_there_and_listed():
    assert {"launch", "train", "RankError"} <= set(dc.__all__) <= set(dir(dc))
    for name in dc.__all__:
        assert callable(getattr(dc, name))


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(AttributeError, match=r"dpcourse has no 'lanch'; it has .*launch, .*train"):
        dc.lanch  # noqa: B018


def test_the_import_alone_brings_neither_torch_nor_numpy_nor_matplotlib():
    code = "import sys, dpcourse\nassert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
