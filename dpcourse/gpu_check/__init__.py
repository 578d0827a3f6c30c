"""`python -m dpcourse.gpu_check`: is a machine with GPUs right for the course, and what does it measure?

It runs what no machine without a GPU can: the strategies beside their expected lists, ledgers beside CUDA's
allocator, ranks that share a card, number formats, checkpoints, overlap. It needs torch with CUDA, numpy,
matplotlib, psutil, filelock (which torch brings) and cloudpickle, and no Jupyter. Each step has
a time limit; whatever becomes of one, the next is taken. `--device cpu` runs the same lines.

    python -m dpcourse.gpu_check --out build
    python -m dpcourse.gpu_check --device cpu --only strategies,shared

It leaves `gpu-report.json`, `gpu-runs/` with recorded runs and `gpu-figures/`. Exit codes: 0 all as expected,
1 something was not, 2 it could not start.
"""
