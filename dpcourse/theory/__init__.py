"""The formulas that expected lists are made of, as functions of integers."""
