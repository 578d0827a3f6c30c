"""Questions beside code, as small builders: numbers with a derivation, matches, an order of events, a pick.

Each makes a ValueQuestion with its judge and its mistakes; a lab gives the words and the run that shows it.
"""

from dpcourse.labs.values.matches import match
from dpcourse.labs.values.numbers import Number, WrongWay, numbers
from dpcourse.labs.values.orders import Before, order
from dpcourse.labs.values.picks import pick

__all__ = ["Before", "Number", "WrongWay", "match", "numbers", "order", "pick"]
