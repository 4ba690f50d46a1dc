"""One command for a machine with a GPU: are the plugins right there, and how fast?

    make gpu-check                  needs a GPU, nvcc and torch
    make gpu-check-prepare          copies TensorRT's headers into build/, for a machine without

Everything but the class `CudaDevice` also runs with `--dry-run`, on the CPU and the host library,
so that a machine with a GPU is not needed to find a spelling mistake.
"""
