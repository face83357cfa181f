"""Evaluation episodes of published policies, in a process of their own."""
