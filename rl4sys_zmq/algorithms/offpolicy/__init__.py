"""Algorithms that train on a replay: DQN, SAC, TD3 and their relatives."""
