"""Suites of envs: gymnasium, MetaWorld, LIBERO, and batched simulators."""
