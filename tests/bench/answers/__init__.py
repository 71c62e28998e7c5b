"""Tests of the benchmark over whole folders."""
