"""Measures the scaling of a training step under FSDP2, and of context parallelism, on several GPUs."""
