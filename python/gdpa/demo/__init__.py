"""The demonstration: gdpa on the user histories of MovieLens 100K, checked against fp64 and timed against PyTorch.

Run it with ``python -m gdpa.demo``; ``--help`` lists its options.
"""
