"""Figures to reach, as ratios within one run, since machines are shared and noisy; `make bench` runs them."""
