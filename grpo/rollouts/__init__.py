"""Rollout engines behind one protocol (base.py): hf.py samples with transformers, in this process."""

from grpo.rollouts.base import Completion, RolloutEngine, Sampling
from grpo.rollouts.hf import HFEngine

__all__ = ["Completion", "HFEngine", "RolloutEngine", "Sampling"]
