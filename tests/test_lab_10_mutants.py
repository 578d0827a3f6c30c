"""Mutants of lab 10's mends, each run on real ranks: a check that lets one pass is broken."""

import pytest

from tests.lab_checks import name_of, passing
from tests.test_lab_10 import SCRIPTS, mend

pytestmark = [pytest.mark.long, pytest.mark.labs]

# Mutants that are right as well, each with its reason.
EQUIVALENT = {
    "Add becomes Sub in seed + dist.get_rank()": "the ranks' seeds differ, whichever way they are counted",
    "Add becomes Sub in total += torch.stack([squares, torch.tensor(float(len(inputs)))])": (
        "both sums change their sign, and their ratio does not"
    ),
}


@pytest.mark.parametrize("question", SCRIPTS, ids=name_of)
def test_every_mutant_of_a_mend_is_refused(question):
    let_through = [what.partition(": ")[2] for what in passing(question, mend(question.name))]
    assert [what for what in let_through if what not in EQUIVALENT] == []
