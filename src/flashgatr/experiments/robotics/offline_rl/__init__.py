"""Offline reinforcement learning from demonstrations: CQL and BCQ, two baselines of the paper."""
