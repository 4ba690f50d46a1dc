"""Take a trained GPT-style model out of PyTorch and put it to work on NVIDIA GPUs."""

__version__ = "0.1.0"
