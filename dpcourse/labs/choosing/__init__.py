"""Lab 09: four meanings of one word, the order of questions, the table of decisions, and a dozen jobs."""

from dpcourse.labs.choosing.choose import CHOOSE
from dpcourse.labs.choosing.jobs import CHOOSE_FOR_JOBS
from dpcourse.labs.choosing.order import ASK_IN_ORDER
from dpcourse.labs.choosing.recipes import RECIPES
from dpcourse.labs.question import LabSpec

LAB = LabSpec("09_choosing", "Choosing", (RECIPES, ASK_IN_ORDER, CHOOSE, CHOOSE_FOR_JOBS))
