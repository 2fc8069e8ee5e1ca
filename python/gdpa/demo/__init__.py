"""The demonstration runs gdpa on the user histories of MovieLens 100K.

It checks the results against fp64 and compares times with PyTorch. Run it with ``python -m gdpa.demo``. ``--help``
lists its options.
"""
