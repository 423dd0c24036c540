"""Benchmarks, one package per room: `python -m bench.engine --scale 1`."""
