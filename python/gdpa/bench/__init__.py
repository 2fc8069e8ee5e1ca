"""The benchmark compares gdpa with every other system that can be imported, in one run.

It writes a table, JSON rows and a picture. Run it with ``python -m gdpa.bench``. ``--help`` lists its options, and
docs/benchmarks.md describes the measurement.
"""
