"""A training script for real use, to be read and copied, and a Slurm script that starts it."""
