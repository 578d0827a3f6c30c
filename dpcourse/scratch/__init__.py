"""The mechanisms of data parallelism from nothing but torch.distributed, written to be read."""
