"""Meters: each watches one step of its own and reports in the ledger's types."""
