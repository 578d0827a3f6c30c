"""What experiments refuse before a process starts: nothing to go through, and what is no run."""

import pytest

from dpcourse import experiments
from dpcourse.experiments.sharded import side_by_side


@pytest.mark.parametrize(
    ("experiment", "asked", "what"),
    [
        (experiments.few_or_many, {"hosts": ()}, "hosts"),
        (experiments.few_or_many, {"sizes": []}, "sizes"),
        (experiments.hybrid, {"shapes": ()}, "shapes"),
        (experiments.range_test, {"ranks": ()}, "ranks"),
        (experiments.range_test, {"ranks": 4}, "ranks"),
        (experiments.range_test, {"ranks": "14"}, "ranks"),
        (experiments.star_or_ring, {"hosts": ()}, "hosts"),
    ],
)
def test_nothing_to_go_through_is_refused(no_process, experiment, asked, what):
    with pytest.raises(ValueError, match=rf"{what}=.*: give a list of one or more"):
        experiment(**asked)


@pytest.mark.parametrize("laid_out", [experiments.crossings, side_by_side])
def test_what_are_no_runs_under_names_is_refused(laid_out):
    with pytest.raises(TypeError, match=r'runs=\[1\]: give each a name, as in {"DDP": dc.train\("ddp"\)}'):
        laid_out([1])
    with pytest.raises(TypeError, match=r"'mine' is 1; give a name and what dc.train returned"):
        laid_out({"mine": 1})
