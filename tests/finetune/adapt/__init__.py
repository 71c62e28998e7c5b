"""Tests of `finetune/adapt`."""
