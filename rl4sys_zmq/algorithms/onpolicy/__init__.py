"""Algorithms that train on the data of the newest policy versions, and forget them: A2C, PPO, IMPALA and their relatives."""
