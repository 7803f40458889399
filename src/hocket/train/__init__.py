"""Training on the engine that evaluates: chunk-level PPO and GRPO, synchronous or asynchronous.

`batches.py` says what the data is, `contract.py` what can be trained, `ppo.py` and `grpo.py` how,
and `loop.py` joins them to the engine. Only what a learner needs imports torch.
"""
