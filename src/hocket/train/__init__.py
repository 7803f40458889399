"""Training on the engine that evaluates: chunk-level PPO and GRPO, synchronous or asynchronous.

`collect` makes stretches of the engine's episodes, `learner` turns them into new weights by one of
the `algorithms`, and `networks` says what can be trained. `trainer.py` joins the two sides, and
`loop.py` is a run from its configuration to its end. What `--help` needs imports no torch.
"""
