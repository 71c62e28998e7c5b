"""Tools that benchmarks share: clocks, drives, energy, the sample corpus, reports and plots."""
