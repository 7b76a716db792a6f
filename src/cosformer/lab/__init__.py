"""The lab: benchmarks, the paper's experiments, and how their results are shown."""
