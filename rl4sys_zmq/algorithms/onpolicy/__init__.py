"""Algorithms that train once on the data of the newest policy versions: A2C, PPO, IMPALA and their relatives."""
