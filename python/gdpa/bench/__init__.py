"""The benchmark: gdpa beside every other system that can be imported, in one run, as a table, JSON rows and a picture.

Run it with ``python -m gdpa.bench``; ``--help`` lists its options, docs/benchmarks.md says how it measures.
"""
