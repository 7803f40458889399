"""PPO and GRPO on chunks."""
