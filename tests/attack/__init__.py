"""The attack kit: `python -m tests.attack --minutes 60 --seed 1` or `make attack`."""
