"""Measuring how fast sources run, and how far that is from what the machine could do."""

from andrea_export.bench.options import BenchOptions, SourceSpec, parse_sizes
from andrea_export.bench.result import BenchResult, MeasuredSource, OpTime, Profile, Row
from andrea_export.bench.run import bench

__all__ = [
    "BenchOptions",
    "BenchResult",
    "MeasuredSource",
    "OpTime",
    "Profile",
    "Row",
    "SourceSpec",
    "bench",
    "parse_sizes",
]
