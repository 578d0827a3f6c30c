"""`dc.expect`: the lists and the headline before anything runs."""

import subprocess
import sys

import pytest

from dpcourse.expectation import expect
from dpcourse.ledger import total
from dpcourse.models import Mlp


def test_seven_billion_parameters_hold_20_bytes_each_and_send_seven_quarters_of_their_bytes():
    found = expect("ddp", num_params=7e9, world_size=8)
    assert [round(found.bytes_per_parameter(phase), 6) for phase in ("backward", "step")] == [20, 16]
    assert found.sent_bytes() == 1.75 * 28e9
    assert "140.00 GB" in str(found)
    assert "49.00 GB" in str(found)


def test_a_model_gives_the_exact_lists():
    found = expect("ddp", model=Mlp(width=64), world_size=4, gradient_as_bucket_view=True)
    layout = Mlp(width=64).layout()
    assert total(found.memory, phase="step", rank=3, owner="buckets") == layout.gradient_bytes
    assert found.sent_bytes(rank=2) == 1.5 * layout.gradient_bytes
    assert found.title.startswith("expected of ddp (gradient_as_bucket_view=True): mlp of ")


def test_single_needs_no_number_of_ranks():
    found = expect("single", model="mlp")
    assert round(found.bytes_per_parameter(), 2) == 16
    assert found.traffic == ()
    assert found.title.endswith("on 1 rank")
    assert "<table" in found.to_html()


@pytest.mark.parametrize("asked", [{}, {"model": "mlp", "num_params": 7e9}])
def test_a_model_or_a_number_must_be_given_and_not_both(asked):
    with pytest.raises(ValueError, match=r"a model or a number of parameters, and not both; say model="):
        expect("ddp", **asked)


def test_expect_needs_no_torch():
    code = (
        "import sys; from dpcourse.expectation import expect; str(expect('ddp', model='gpt-small'))\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
