"""Widgets: what a learner moves with the hand. Each draws its first state as a plain picture too."""

from dpcourse.widgets.split import split_explorer

__all__ = ["split_explorer"]
