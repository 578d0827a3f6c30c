"""Lab 10: a dozen broken scripts, each to be mended, and each cause to be named."""

from dpcourse.labs.production.causes import CAUSES, SCRIPTS
from dpcourse.labs.question import LabSpec

LAB = LabSpec("10_in_production", "A dozen scripts to mend", (*SCRIPTS, CAUSES))
