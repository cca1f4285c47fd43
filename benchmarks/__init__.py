"""Benchmarks: what the engine costs, as ratios to floors taken in the same run.

``python -m benchmarks`` measures everything, ``python -m benchmarks chain wide`` some of it. No figure is ever
asserted by a test; ``--check`` turns missed bars into an exit code for those who ask. See ``RESULTS.md``.
"""
