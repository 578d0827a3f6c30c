"""The selection guide: every strategy of the course, ranked for a model on some hardware. `dc.plan`."""
