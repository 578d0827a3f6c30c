"""ZeRO in the ideal: what a rank holds and sends for each parameter when everything divides evenly."""


def accumulated_gradient_bytes(
    num_params: float, gradient_bytes: int, num_ranks: int, is_synchronised: bool
) -> float:
    """Bytes of gradients that a fully sharded rank holds between two micro-batches.

    Each micro-batch synchronised (a reduce-scatter each) leaves a rank its shard. With synchronisation off
    there is no communication, and the whole gradient stays until the last micro-batch reduces it.
    Source: FSDPModule.set_requires_gradient_sync in torch/distributed/fsdp/_fully_shard.
    """
    return num_params * gradient_bytes / (num_ranks if is_synchronised else 1)
